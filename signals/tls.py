"""TLS of the report port and of reporters, from files that may be replaced while running."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import grpc

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. For a server `ca` verifies clients; for a client it verifies the server."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def stamp(self) -> tuple[int, ...]:
        """Changes when a file is replaced (also by a symlink swap)."""
        return tuple(path.stat().st_mtime_ns for path in (self.cert, self.key, self.ca) if path)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Server credentials that pick up replaced files at the next handshake; a half-written pair is not taken
    and the last good one stays. With `ca`, a client certificate is demanded (mTLS).

    Raises OSError when a file cannot be read, ValueError without certificate or key.
    """
    if files.cert is None or files.key is None:
        raise ValueError("TLS for load reports needs a certificate and a key")
    current = files.stamp()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal current
        try:
            stamp = files.stamp()
            if stamp == current:
                return None
            configuration = _configuration(files)
        except (OSError, ValueError) as error:
            _log.warning("certificate_not_reloaded", extra={"reason": str(error)})
            return None
        current = stamp
        return configuration

    return grpc.dynamic_ssl_server_credentials(_configuration(files), changed, files.ca is not None)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    pair = (_read(files.key), _read(files.cert))
    return grpc.ssl_server_certificate_configuration([pair], _read(files.ca))


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Client credentials: `ca` verifies the server (None: the system's), certificate and key identify us."""
    return grpc.ssl_channel_credentials(_read(files.ca), _read(files.key), _read(files.cert))


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None
