"""ASGI middleware for vLLM and other streaming engines: no response headers before the first body bytes.

vLLM sends the headers of a stream (200) at once, and its first token seconds later when the request was
queued. Nothing in front of it can retry a stream whose headers are out: if the engine dies in between, the
client sees a broken 200. With this middleware the headers wait for the first body bytes, so that until then
a proxy sees a request without an answer and may send it elsewhere. A stream whose first event is an error
becomes a plain error response: with the error's own status if that is 4xx (the client's fault, not to be
retried), else 503.

One file without dependencies (Python >= 3.10): copy it beside the engine.

    PYTHONPATH=/opt/headrace vllm serve MODEL --middleware hold_headers.HoldHeaders

What it costs: a client sees no headers while its request is queued, so idle time-outs between client and
engine must exceed the longest time to the first token.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MAX_FIRST_EVENT = 64 * 1024
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class HoldHeaders:
    """Wraps an ASGI application."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response = _Response(send)
        try:
            await self.app(scope, receive, response.send)
        except Exception:
            await response.fail()
            raise


class _Response:
    """One response: its start is held until what follows is known."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._held = b""
        self._replaced = False
        """An error was answered instead: the rest of the stream is dropped."""

    async def send(self, message: Message) -> None:
        """Take a message from the application."""
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            await self._first_bytes(message)
        else:
            await self._release(more=True)
            await self._send(message)

    async def _first_bytes(self, message: Message) -> None:
        self._held += message.get("body", b"")
        more = message.get("more_body", False)
        if more and not self._complete():
            return
        error = self._error()
        if error is not None:
            await self._replace(*error)
        else:
            await self._release(more=more)

    def _complete(self) -> bool:
        """Whether enough is held to tell an error from an answer."""
        if not self._is_event_stream():
            return bool(self._held)
        return any(end in self._held for end in _EVENT_ENDS) or len(self._held) > _MAX_FIRST_EVENT

    def _is_event_stream(self) -> bool:
        assert self._start is not None
        headers: list[tuple[bytes, bytes]] = list(self._start.get("headers", ()))
        return any(
            name.lower() == b"content-type" and value.lower().startswith(b"text/event-stream")
            for name, value in headers
        )

    def _error(self) -> tuple[int, dict[str, Any]] | None:
        """Status and body, when a good stream begins with an error event."""
        assert self._start is not None
        if self._start["status"] != 200 or not self._is_event_stream():
            return None
        error = _error_of(_first_event(self._held))
        if error is None:
            return None
        code = error.get("code")
        return code if isinstance(code, int) and 400 <= code < 500 else 503, {"error": error}

    async def _release(self, *, more: bool) -> None:
        """Send what was held, as it is; `more` body follows, or not."""
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
            if self._held or not more:
                await self._send({"type": "http.response.body", "body": self._held, "more_body": more})

    async def fail(self) -> None:
        """The application broke while its headers were held: nothing is out, so an error can be said."""
        if self._start is not None and not self._replaced:
            message = "the engine failed before the first token"
            error = {"message": message, "type": "engine_error", "code": 503}
            await self._replace(503, {"error": error})

    async def _replace(self, status: int, body: dict[str, Any]) -> None:
        self._start, self._replaced = None, True
        content = json.dumps(body).encode()
        length = str(len(content)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content, "more_body": False})


def _first_event(data: bytes) -> Any:
    """The JSON of the first server-sent event; None when it is not JSON. What follows it in the same chunk,
    `[DONE]` for example, is not looked at."""
    lines = (line[5:].strip() for line in data.splitlines() if line.startswith(b"data:"))
    try:
        return json.JSONDecoder().raw_decode(b"".join(lines).decode("utf-8", "replace"))[0]
    except ValueError:
        return None


def _error_of(event: Any) -> dict[str, Any] | None:
    """The error that an event carries, in vLLM's present form or its older one (the event is the error)."""
    if not isinstance(event, dict):
        return None
    error = event if event.get("object") == "error" else event.get("error")
    return error if isinstance(error, dict) else None
