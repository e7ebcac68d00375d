"""Who may speak to the control plane: paths to secrets, never secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from headrace.policy.schema.base import Shape
from headrace.policy.types import Digests, fault


class SecretFile(Shape):
    """A path to a secret, never the secret."""

    file: Annotated[str, Field(min_length=1, max_length=4_096)]
    """Relative to the policy file."""


def _secret(value: Any) -> Any:
    if isinstance(value, str):
        raise fault("is written out here", "{file: <path>}: paths, never secrets")
    return value


Secret = Annotated[SecretFile, BeforeValidator(_secret)]


class Tls(Shape):
    """TLS of one port."""

    cert: Secret
    """Certificate of the control plane, PEM."""
    key: Secret
    """Its key, PEM."""


Identity = Annotated[str, Field(min_length=1, max_length=1_024)]


class XdsSecurity(Tls):
    """The xDS port: mutual TLS."""

    client_ca: Secret
    """Authority of the Envoys' certificates, PEM."""
    identity: Identity
    """URI or DNS name that an Envoy's certificate must carry; `{frontend}` is filled in."""

    @model_validator(mode="after")
    def _bound(self) -> XdsSecurity:
        _check_identity(self.identity, "{frontend}", set())
        return self


class ReportsSecurity(Tls):
    """The reports port: mutual TLS, tokens, or both."""

    client_ca: Secret | None = None
    """Authority of the reporters' certificates, PEM; goes with `identity`."""
    identity: Identity | None = None
    """URI or DNS name that a reporter's certificate must carry; `{engine}` (and `{region}`, `{cluster}`) are
    filled in."""
    tokens: Mapping[str, Digests] = {}
    """Engine (ranges allowed) → SHA-256 digests of the bearer tokens that may report for it, or
    `{file: <path>}` with such a map."""

    @model_validator(mode="after")
    def _bound(self) -> ReportsSecurity:
        if (self.client_ca is None) != (self.identity is None):
            raise fault("has only one of `client_ca` and `identity`", "both, or neither")
        if self.identity is None and not self.tokens:
            raise fault("nothing proves who reports", "`client_ca` and `identity`, or `tokens`")
        if self.identity is not None:
            _check_identity(self.identity, "{engine}", {"{region}", "{cluster}"})
        return self


def _check_identity(identity: str, needed: str, allowed: set[str]) -> None:
    holes = re.findall(r"\{[^{}]*\}", identity)
    if holes.count(needed) != 1:
        what = needed.strip("{}").replace("frontend", "front-end")
        raise fault(f"the identity does not name the {what}", f"{needed} once in `identity`")
    if unknown := set(holes) - {needed} - allowed:
        raise fault(f"the identity has {min(unknown)}", " or ".join(sorted({needed, *allowed})))


class Security(Shape):
    """Who may speak to the control plane. Without it, only loopback and only with `--insecure-dev`."""

    reports: ReportsSecurity | None = None
    """Load reports of engines."""
    xds: XdsSecurity | None = None
    """Envoys."""
