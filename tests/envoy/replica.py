"""A replica that tests see through: every byte it gets is kept, every byte it sends is decided by the test.

Runs inside the test, or as a process of its own that can be killed:

    python replica.py NAME PORTS_FILE ANSWER_AFTER_S
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Received:
    """One request, as it came in."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


@dataclass(eq=False)
class Replica:
    """An HTTP/1.1 server on a port of its own. `answer` may be replaced at any time."""

    name: str
    answer_after_s: float = 0.0
    received: list[Received] = field(default_factory=list)
    healthy: bool = True
    keep: bool = True
    """Whether requests are kept; loads switch it off."""

    def __post_init__(self) -> None:
        self.answer: Callable[[Received, asyncio.StreamWriter], Awaitable[None]] = self.answer_json
        self.arrived = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def reached(self, count: int) -> None:
        """Wait until `count` requests have come in."""
        await reached(count, self)

    async def answer_json(self, request: Received, out: asyncio.StreamWriter) -> None:
        if self.answer_after_s:
            await asyncio.sleep(self.answer_after_s)
        body = json.dumps({"replica": self.name, "object": "chat.completion"}).encode()
        out.write(head(200, ("content-type", "application/json"), ("content-length", str(len(body)))) + body)

    async def answer_503(self, request: Received, out: asyncio.StreamWriter) -> None:
        out.write(head(503, ("content-length", "6")) + b"broken")

    async def answer_500(self, request: Received, out: asyncio.StreamWriter) -> None:
        out.write(head(500, ("content-length", "6")) + b"broken")

    async def never(self, request: Received, out: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            while True:
                await self._exchange(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # asyncio logs a cancelled connection as an error unless it ends by itself.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        method, path, _ = first.split(" ")
        pairs = (line.split(": ", 1) for line in lines)
        request = Received(method, path, [(pair[0].lower(), pair[-1]) for pair in pairs], b"")
        if path == "/health":
            writer.write(head(200 if self.healthy else 503, ("content-length", "0")))
        else:
            request = Received(method, path, request.headers, await _body(request, reader))
            if self.keep:
                self.received.append(request)
                self.arrived.set()
            await self.answer(request, writer)
        await writer.drain()


async def _body(request: Received, reader: asyncio.StreamReader) -> bytes:
    if length := request.header("content-length"):
        return await reader.readexactly(int(length))
    body = b""
    if request.header("transfer-encoding"):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    return body


async def reached(count: int, *replicas: Replica) -> None:
    """Wait until `count` requests have come in at several replicas together."""
    while sum(len(replica.received) for replica in replicas) < count:
        for replica in replicas:
            replica.arrived.clear()
        waiting = [asyncio.create_task(replica.arrived.wait()) for replica in replicas]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()


def head(status: int, *headers: tuple[str, str]) -> bytes:
    """Return a status line and headers."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked answer; the empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _main(name: str, ports: Path, answer_after_s: float) -> None:
    async with Replica(name, answer_after_s, keep=False) as replica:
        ports.with_suffix(".new").write_text(json.dumps({"http": replica.port}))
        ports.with_suffix(".new").rename(ports)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
