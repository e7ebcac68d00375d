"""Error answers, with the bodies of vLLM 0.32."""

from __future__ import annotations

import json

DONE = b"data: [DONE]\n\n"
CORE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
INVALID = "Bad Request"
"""Type of an error in the body's form; an error in what it asks for is a BadRequestError."""
_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class Refusal(Exception):
    """A request that gets an error answer instead of tokens."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.kind = kind or _TYPES.get(status, "APIError")

    def body(self) -> bytes:
        """Return the JSON document that goes with the status."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}, separators=(",", ":")).encode()

    def events(self) -> bytes:
        """Return the end of a stream that fails after its headers: an error event, then [DONE]."""
        return b"data: " + self.body() + b"\n\n" + DONE
