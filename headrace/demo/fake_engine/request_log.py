"""What requests an engine received: counts, and the last ones whole, for tests that compare bytes."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from aiohttp import web

_KEPT_REQUESTS = 64
_KEPT_BODY_BYTES = 64 * 1024
_KEPT_PATHS = 200


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came in."""

    path: str
    headers: tuple[tuple[str, str], ...]
    length: int
    sha256: str
    body: bytes
    """The first 64 KiB."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON values, the body in base64."""
        return {
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "length": self.length,
            "sha256": self.sha256,
            "body_base64": b64encode(self.body).decode(),
        }


class RequestLog:
    """The last requests and their counts by path, calling front-end and outcome."""

    def __init__(self) -> None:
        self.last: deque[Received] = deque(maxlen=_KEPT_REQUESTS)
        self.paths: Counter[str] = Counter()
        self.frontends: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()

    def keep(self, request: web.Request, body: bytes) -> None:
        """Note a request together with its body."""
        self.count(request)
        headers = tuple(
            (name.decode("latin-1"), text.decode("latin-1")) for name, text in request.raw_headers
        )
        digest = hashlib.sha256(body).hexdigest()
        self.last.append(Received(request.path, headers, len(body), digest, body[:_KEPT_BODY_BYTES]))

    def count(self, request: web.Request) -> None:
        """Count a request by its path, as long as there are not too many of them."""
        if request.path in self.paths or len(self.paths) < _KEPT_PATHS:
            self.paths[request.path] += 1
