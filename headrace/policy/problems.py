"""What is wrong with a policy, told so that its author can put it right without reading code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Where in the document: keys and list indices from the root."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a policy file."""

    file: str
    line: int
    """1-based; 0 when the whole file is meant."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault or warning: where it is, what is wrong and what would be right."""

    place: Place
    path: str
    wrong: str
    expected: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: {self.path}: " if self.path else f"{self.place}: "
        return where + self.wrong + (f"; expected {self.expected}" if self.expected else "")


class PolicyError(Exception):
    """A policy that cannot be used.

    `problems` lists every reason found, in the order of the files; `files` every file that was read.
    """

    def __init__(self, problems: Sequence[Problem], files: Sequence[str] = ()) -> None:
        self.problems = tuple(sorted(set(problems)))
        self.files = tuple(files)
        super().__init__("\n".join(map(str, self.problems)))


def dotted(path: Path) -> str:
    """`("engines", "a", "static", 0)` as `engines.a.static[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def is_secret(path: Path) -> bool:
    """Whether a value of the document is never repeated: somebody may have written a secret where its path or
    its digest belongs."""
    return path[:1] == ("security",)


def shown(value: object, limit: int = 60) -> str:
    """A value of the document as its author would recognise it, shortened."""
    match value:
        case None:
            return "empty"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            text = value if len(value) <= limit else value[: limit - 1] + "…"
            return f"the text {text!r}"
        case dict():
            return "a map"
        case _:
            return "a list"
