"""Who a reporter is: the names in its verified client certificate, or a bearer token.

Either proves one engine name: an engine's credential cannot report for another. Common names are not looked
at (RFC 9525, section 2); tokens are kept as SHA-256 digests only.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SAN = "x509_subject_alternative_name"
_BEARER = "bearer "


class Refused(Exception):
    """A report is not taken. `code` is a result label of `headrace_reports_total`."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Proof:
    """What a connection proved."""

    names: frozenset[str] = frozenset()
    """Subject alternative names of the client certificate."""
    token_sha256: str = ""
    """Hex digest of the bearer token, "" without one."""


@dataclass(frozen=True, slots=True)
class IdentityRule:
    """What proves an engine's name; one of the two is enough."""

    template: str = ""
    """Name expected in the certificate, with `{engine}`, `{region}` and `{cluster}` filled in, for example
    `spiffe://prod/engine/{engine}`. Empty: certificates prove nothing."""
    tokens: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """engine -> SHA-256 hex digests of the tokens that may report for it."""

    def check(self, engine: str, region: str, cluster: str, proof: Proof) -> None:
        """Raises Refused (`identity`) unless the proof is one of the engine."""
        wanted = self.template
        for field_name, value in (("engine", engine), ("region", region), ("cluster", cluster)):
            wanted = wanted.replace(f"{{{field_name}}}", value)
        if wanted and wanted in proof.names:
            return
        digests = self.tokens.get(engine, frozenset())
        if proof.token_sha256 and any(hmac.compare_digest(proof.token_sha256, digest) for digest in digests):
            return
        names = ", ".join(sorted(proof.names)) or "none"
        token = "a token that is not this engine's" if proof.token_sha256 else "no token"
        wish = f", wanted {wanted}" if wanted else ""
        raise Refused("identity", f"nothing proves that this is {engine}: names {names}{wish}; {token}")


def proof_of(context: Any) -> Proof:
    """The proof of a grpc.aio server context."""
    names = context.auth_context().get(_SAN, ())
    token = ""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str) and value.lower().startswith(_BEARER):
            token = value[len(_BEARER) :].strip()
    return Proof(
        names=frozenset(name.decode("utf-8", "replace") for name in names),
        token_sha256=token_digest(token) if token else "",
    )


def token_digest(token: str) -> str:
    """The SHA-256 hex digest under which a token is kept."""
    return hashlib.sha256(token.encode()).hexdigest()
