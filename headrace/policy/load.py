"""From a file or a folder to a `Policy`, or to every reason why not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from headrace.policy import checks
from headrace.policy.archive import Archive
from headrace.policy.compile import compile_policy
from headrace.policy.errors import translate
from headrace.policy.policy import Policy
from headrace.policy.problems import Path, Place, PolicyError
from headrace.policy.schema import Document
from headrace.policy.source import FAULTY, Source, read


def load(path: str | FilePath, archive: Archive | None = None) -> Policy:
    """Load a policy file, or a folder whose `*.yaml` files are merged.

    Raises `PolicyError` with every problem found. Nothing but the named files (and the profile and
    token files that they name) is read. With an `archive` the files' texts are those that it holds.
    """
    path = FilePath(path)
    source, files = _gather(path, archive)
    own = tuple(files)
    files += _read_files(source, path, archive)
    document = _validate(source)
    if document is not None:
        checks.check(document, source)
    if source.problems or document is None:
        raise PolicyError(source.problems, files)
    return compile_policy(document, source, tuple(files), archive or Archive.of(path, own, source.texts))


def policy_files(path: FilePath) -> list[FilePath]:
    """The file itself, or the `*.yaml` and `*.yml` files of a folder, sorted. OSError if it is unreadable."""
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if p.suffix in (".yaml", ".yml") and not p.name.startswith("."))


def _gather(path: FilePath, archive: Archive | None) -> tuple[Source, list[str]]:
    merged = Source(places={(): Place(str(path), 0)}, readable=True)
    try:
        files = archive.files(path) if archive else policy_files(path)
    except OSError as error:
        merged.complain((), f"cannot be read: {error.strerror}", "a readable folder")
        return merged, []
    if not files:
        merged.complain((), "the folder has no *.yaml file", "one or more policy files")
    for file in files:
        _merge(merged, read(file, text=archive.text(path, file) if archive else None))
    return merged, [str(file) for file in files]


def _merge(into: Source, other: Source) -> None:
    into.problems += other.problems
    into.texts |= other.texts
    into.readable = into.readable and other.readable
    _merge_maps(into, into.value, other, other.value, ())
    for path, place in other.places.items():
        into.places.setdefault(path, place)


def _merge_maps(into: Source, target: dict[str, Any], other: Source, new: dict[str, Any], path: Path) -> None:
    """Sections (and `network.rtt_ms`) are put together key by key; any other key is in one file only."""
    for key, value in new.items():
        here = (*path, key)
        if key not in target:
            target[key] = value
        elif isinstance(target[key], dict) and isinstance(value, dict) and _is_section(here):
            _merge_maps(into, target[key], other, value, here)
        else:
            into.complain(
                here, f"the key is also in {into.places[here]}", "each key in one file", other.places[here]
            )
    ordered = dict(sorted(target.items()))
    target.clear()
    target.update(ordered)


def _is_section(path: Path) -> bool:
    return len(path) == 1 or (path[:2] == ("network", "rtt_ms") and len(path) <= 3)


def _read_files(source: Source, path: FilePath, archive: Archive | None) -> list[str]:
    """Put the content of `{file: ...}` of profiles and tokens in its place; returns the files' names."""
    root = source.value
    places: list[Path] = [("profiles", name) for name in _map(root, "profiles")]
    places += [("security", "reports", "tokens")] * ("tokens" in _map(root, "security", "reports"))
    known = partial(archive.text, path) if archive else _nothing
    return [file for place in places if (file := _read_file(source, place, _map(root, *place[:-1]), known))]


def _nothing(file: FilePath) -> None:
    """What is known of a file's text while the disk is to be read."""


def _map(value: Any, *keys: str | int) -> dict[str, Any]:
    """The map at some keys; empty when there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _read_file(
    source: Source, path: Path, holder: dict[str, Any], known: Callable[[FilePath], str | None]
) -> str | None:
    name, value = str(path[-1]), holder[str(path[-1])]
    if not isinstance(value, dict) or not isinstance(value.get("file"), str):
        return None
    if len(value) > 1:
        source.complain(path, "has other keys beside `file`", "only `file`, or the content itself")
        return None
    file = FilePath(source.place((*path, "file")).file).parent / value["file"]
    inner = read(file, path, known(file))
    source.problems += inner.problems
    source.texts |= inner.texts
    source.places.update(inner.places)
    holder[name] = inner.value if inner.readable else FAULTY
    return str(file)


def _validate(source: Source) -> Document | None:
    """The document, or None with the reasons noted. An unreadable file gives no further reasons."""
    if not source.readable or not source.value:
        return None
    try:
        return Document.model_validate(source.value)
    except ValidationError as error:
        translate(error, source)
        return None
