"""Child processes that cannot outlive their parent: started alone in a session, ended by their own pid."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LAUNCHER = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Asks the kernel for SIGKILL when the parent dies (Linux; elsewhere the parent's clean-up has to do), then
becomes the program. Not a `preexec_fn`: code between fork and exec crashes beside grpc's threads."""


class ChildFailedError(RuntimeError):
    """A child ended before it was ready; the text holds the tail of its log."""


class Child:
    """One child process with its output in a log file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @classmethod
    async def start(
        cls, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start `argv` with stdout and stderr appended to `log`.

        The child has its own session: Ctrl-C in the terminal reaches the parent alone, which then ends its
        children in order.
        """
        with log.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-ISc", _LAUNCHER, *argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=dict(env) if env is not None else None,
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.returncode is None

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal; a process that is gone is no error."""
        if self.running:
            self.process.send_signal(signum)

    async def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM, wait up to `grace_s` seconds, then SIGKILL."""
        self.kill(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), grace_s)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    async def ports(self, path: Path, timeout_s: float = 30.0) -> Mapping[str, Any]:
        """Wait for the JSON file in which the child names its ports.

        Raises ChildFailedError when the child ends first or does not get ready in `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (document := _read_json(path)) is None:
                    if not self.running:
                        code = self.process.returncode
                        raise ChildFailedError(f"{self.name} ended with {code}:\n{self.tail()}")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            text = f"{self.name} is not ready after {timeout_s:g} s:\n{self.tail()}"
            raise ChildFailedError(text) from None
        return document

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the child's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _read_json(path: Path) -> dict[str, Any] | None:
    """The file's content, None while it is not there."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return document


def write_ports(path: Path, ports: Mapping[str, Any]) -> None:
    """Publish a process's bound ports atomically (written aside, then renamed)."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(ports))
    temporary.replace(path)
