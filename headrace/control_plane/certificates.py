"""When the control plane's own certificates expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from headrace.control_plane import rules
from headrace.policy import Policy


def earliest_expiry(policy: Policy) -> float | None:
    """Unix seconds at which the first certificate of the xDS and the reports port expires, its chain
    included; None where there is none that can be read. Read anew each time: files are replaced."""
    files = {
        found.cert for port in ("reports", "xds") if (found := rules.tls_files(policy, port)) and found.cert
    }
    return min((at for file in files for at in _expiries(file)), default=None)


def _expiries(file: Path) -> Iterator[float]:
    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError):
        return  # half replaced, or not there: the ports go on with what they have
    yield from (certificate.not_valid_after_utc.timestamp() for certificate in chain)
