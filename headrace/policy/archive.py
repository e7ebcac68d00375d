"""The text of a policy, so that it can be loaded again when the files on disk say something else by then.

It is kept in the saved state, so it must hold no secret. Keys and certificates are never read with a policy.
Of tokens a policy has SHA-256 digests: they must stay whole to be checked with, and from that of a random
token nothing can be learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Archive:
    """All files of one policy, by their names relative to its folder: paths in it mean what they meant."""

    folder: bool
    """Whether `--policy` named a folder."""
    own: tuple[str, ...]
    """The policy's own files; the others are those that it names."""
    texts: Mapping[str, str]
    """Name -> text, own files included."""

    @classmethod
    def of(cls, path: Path, own: tuple[str, ...], texts: Mapping[str, str]) -> Archive:
        """Return what was read for the policy at `path`: its own files, and the text of every file."""
        folder = path.is_dir()
        base = path if folder else path.parent
        names = {file: relpath(file, base) for file in texts}
        return cls(folder, tuple(names[file] for file in own), {names[f]: text for f, text in texts.items()})

    def files(self, path: Path) -> list[Path]:
        """The policy's own files as they are called when it is at `path`."""
        return [self._base(path) / name for name in self.own]

    def text(self, path: Path, file: Path) -> str | None:
        """The text of a file of the policy at `path`; None when it is none of its files."""
        return self.texts.get(relpath(file, self._base(path)))

    def _base(self, path: Path) -> Path:
        return path if self.folder else path.parent

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the saved state."""
        return {"folder": self.folder, "own": list(self.own), "texts": dict(self.texts)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Archive:
        """Return what `to_json` wrote. Raises KeyError or TypeError when it did not."""
        return cls(bool(document["folder"]), tuple(document["own"]), dict(document["texts"]))
