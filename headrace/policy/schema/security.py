"""Who may speak to the control plane: paths to secrets, never secrets."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from headrace.policy.schema.base import Shape
from headrace.policy.types import fault


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
    """Mutual TLS of one port."""

    cert: Secret
    """Certificate of the control plane, PEM."""
    key: Secret
    """Its key, PEM."""
    client_ca: Secret
    """Authority of the clients' certificates, PEM."""
    identity: Annotated[str, Field(min_length=1, max_length=1_024)]
    """URI (or DNS name) that a client's certificate must carry; `{engine}` or `{frontend}` is filled in."""


class ReportsSecurity(Tls):
    """The reports port; `{engine}` in the identity."""

    @model_validator(mode="after")
    def _bound(self) -> ReportsSecurity:
        if self.identity.count("{engine}") != 1:
            raise fault("the identity does not name the engine", "{engine} once in `identity`")
        return self


class XdsSecurity(Tls):
    """The xDS port; `{frontend}` in the identity."""

    @model_validator(mode="after")
    def _bound(self) -> XdsSecurity:
        if self.identity.count("{frontend}") != 1:
            raise fault("the identity does not name the front-end", "{frontend} once in `identity`")
        return self


class Security(Shape):
    """Who may speak to the control plane. Without it, only loopback and only with `--insecure-dev`."""

    reports: ReportsSecurity | None = None
    """Load reports of engines."""
    xds: XdsSecurity | None = None
    """Envoys."""
