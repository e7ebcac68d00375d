"""Reading YAML strictly: plain values, and the line each of them stands on.

PyYAML reads YAML 1.1, in which `no` is false, `012` is ten and `1:30` is ninety. A policy that says one
thing and means another is worse than none, so whatever YAML 1.1 would reinterpret is refused here, as are
duplicate keys, anchors that are used (the way to alias bombs), tags and empty values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from headrace.policy.problems import Path, Place, Problem, dotted, is_secret

MAX_BYTES = 1 << 20
"""Largest accepted file."""
MAX_DEPTH = 24
"""Deepest accepted nesting; the schema needs fewer than ten levels."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_READ_AS = {
    "bool": "a boolean",
    "int": "a number in another notation",
    "float": "a number in another notation",
    "timestamp": "a date",
    "null": "nothing",
}
_VERBATIM = ("revision", "state")
"""Keys whose value is taken as written: free text that CI writes unquoted and may look like a number, and
an engine's state, of which `off` is one though YAML 1.1 reads it as false."""


@dataclass(slots=True)
class Source:
    """The values of one document (or several, merged) with the place of each."""

    value: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    readable: bool = False
    """Whether there are values at all; without, nothing can be said of what is missing."""
    texts: dict[str, str] = field(default_factory=dict)
    """File -> its text, of every file that was read."""

    def place(self, path: Path) -> Place:
        """Where `path`, or its nearest ancestor that is written somewhere, stands."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path]

    def complain(self, path: Path, wrong: str, expected: str = "", at: Place | None = None) -> None:
        """Note one problem."""
        self.problems.append(Problem(at or self.place(path), dotted(path), wrong, expected))


def read(file: FilePath, base: Path = (), text: str | None = None) -> Source:
    """Read one YAML file into a `Source`; faults are noted in it, never raised.

    `base` is put before every path (a profile in a file of its own lives at `profiles.<name>`). A `text` that
    is given counts as the file's; nothing is read then.
    """
    source = Source(places={base: Place(str(file), 0)})
    text = _text(file, source, base) if text is None else text
    if text is None:
        return source
    source.texts[str(file)] = text
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        _syntax(error, source, base)
        return source
    if not isinstance(root, yaml.MappingNode):
        what = "the file is empty" if root is None else "the file is not a map"
        source.complain(base, what, "`key: value` lines")
        return source
    source.value, source.readable = _Reader(source).map(root, base), True
    return source


def _text(file: FilePath, source: Source, base: Path) -> str | None:
    """The file's text, or None with the reason noted."""
    try:
        if not file.is_file():
            source.complain(base, "there is no such file", "a readable YAML file")
            return None
        data = file.open("rb").read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            source.complain(base, "the file is larger than 1 MiB", "at most 1048576 bytes")
            return None
        return data.decode("utf-8-sig")
    except OSError as error:
        source.complain(base, f"cannot be read: {error.strerror}", "a readable YAML file")
    except UnicodeDecodeError as error:
        source.complain(base, f"byte {error.start} is not UTF-8", "UTF-8 text")
    return None


def _syntax(error: yaml.YAMLError, source: Source, base: Path) -> None:
    mark = getattr(error, "problem_mark", None)
    at = Place(source.places[base].file, mark.line + 1 if mark else 0)
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    source.complain(base, f"not valid YAML: {said}", at=at)


def _read_as(node: yaml.Node, path: Path) -> str:
    """What YAML takes a scalar for."""
    tag = "something else" if is_secret(path) else f"`{node.tag}`"
    return _READ_AS.get(node.tag.removeprefix(_TAG), tag)


class _Reader:
    """Turns a node graph into dicts, tuples and scalars. A node met twice is an alias."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = next(iter(source.places.values())).file
        self.seen: set[int] = set()

    def map(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        """Sorted by key, so that nothing after this can depend on the order in the file."""
        result: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self.key(key_node, path, line)
            if key is None:
                continue
            here, place = (*path, key), Place(self.file, line)
            if key in first:
                self.source.complain(here, f"the key is already on line {first[key]}", "each key once", place)
                continue
            first[key] = line
            self.source.places[here] = place
            result[key] = self.value(value_node, here)
        return dict(sorted(result.items()))

    def key(self, node: yaml.Node, path: Path, line: int) -> str | None:
        """The text of a key, or None with the reason noted."""
        place = Place(self.file, line)
        if not isinstance(node, yaml.ScalarNode):
            self.source.complain(path, "a list or map is used as a key", "a name", place)
        elif node.tag == _TAG + "str":
            return str(node.value)
        elif node.tag == _TAG + "merge":
            self.source.complain(
                path, "`<<` merge keys are not accepted", "`defaults` for shared values", place
            )
        else:
            kind = node.tag.removeprefix(_TAG)
            read_as = "a number" if kind in ("int", "float") else _read_as(node, path)
            name = "" if is_secret(path) else f" `{node.value}`"
            wish = "it" if is_secret(path) else f'"{node.value}"'
            self.source.complain(path, f"YAML reads the name{name} as {read_as}", f"{wish} in quotes", place)
        return None

    def value(self, node: yaml.Node, path: Path) -> Any:
        if not self.fresh(node, path):
            return FAULTY
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.map(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return self.list(node, path)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        tag = "a tag" if is_secret(path) else f"the tag `{node.tag.removeprefix(_TAG)}`"
        self.source.complain(path, f"has {tag}", "plain YAML without tags")
        return FAULTY

    def fresh(self, node: yaml.Node, path: Path) -> bool:
        """Note an alias (a node met before) or nesting without end."""
        if id(node) in self.seen:
            self.source.complain(
                path, "anchors and aliases (`&`, `*`) are not accepted", "`defaults` or the value"
            )
            return False
        self.seen.add(id(node))
        if len(path) > MAX_DEPTH:
            self.source.complain(
                path[:3], f"is nested more than {MAX_DEPTH} levels deep", "the shape of a policy"
            )
            return False
        return True

    def list(self, node: yaml.SequenceNode, path: Path) -> tuple[Any, ...]:
        values = []
        for index, item in enumerate(node.value):
            here = (*path, index)
            self.source.places[here] = Place(self.file, item.start_mark.line + 1)
            values.append(self.value(item, here))
        return tuple(values)

    def scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = str(node.value)
        if (path[-1] in _VERBATIM and node.tag.startswith(_TAG)) or node.tag == _TAG + "str":
            return self.text(text, path)
        kind = node.tag.removeprefix(_TAG)
        if kind == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind == "int" and _DECIMAL.fullmatch(text):
            return int(text) if len(text) < 20 else float(text)
        if kind == "float" and (_FLOAT.fullmatch(text) or text.lower() in _SPECIAL):
            return float(_SPECIAL.get(text.lower(), text))
        if kind == "null":
            self.source.complain(path, "has no value", "a value, or no such key")
        else:
            value = "the value" if is_secret(path) else f"`{text[:60]}`"
            wrong = f"YAML reads {value} as {_read_as(node, path)}"
            self.source.complain(path, wrong, "true, false, a decimal number, or the text in quotes")
        return FAULTY

    def text(self, text: str, path: Path) -> Any:
        if "-----BEGIN" in text:
            self.source.complain(
                path, "holds a key or certificate itself", "{file: <path>}: paths, never secrets"
            )
            return FAULTY
        return text


class _FaultyType:
    """Stands for a value whose fault is noted already, so that no check complains about it again."""

    def __repr__(self) -> str:
        return "a faulty value"


FAULTY = _FaultyType()


def is_faulty(value: object) -> bool:
    """True for the stand-in of a value that was refused while reading."""
    return value is FAULTY
