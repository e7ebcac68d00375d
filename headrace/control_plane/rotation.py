"""Slow rotation of what is shed, so that the same sessions are not refused for ever. Pure."""

from __future__ import annotations

from optimizer import SHED, UNITS, Partition

_Entries = list[tuple[str, int]]


def rotated(partition: Partition, fraction: float) -> Partition:
    """Move what is shed onwards through the hash space by `fraction` of its width.

    The first refused sessions are served again, by the engine that served those now refused in their
    place, so every share stays as it is. One interval moves at a time; it gathers up the others on its way.
    """
    shed = partition.units.get(SHED, 0)
    step = int(fraction * shed)
    if not step or shed == UNITS:
        return partition
    entries = list(partition.entries)
    moved = _over_the_end(entries, step) if entries[-1][0] == SHED else _within(entries, step)
    return Partition(_merged(moved))


def _within(entries: _Entries, step: int) -> _Entries:
    """The first shed interval changes places with the beginning of what follows it."""
    at = next(index for index, (name, _) in enumerate(entries) if name == SHED)
    width, (other, room) = entries[at][1], entries[at + 1]
    step = min(step, width, room)
    return [*entries[:at], (other, step), (SHED, width), (other, room - step), *entries[at + 2 :]]


def _over_the_end(entries: _Entries, step: int) -> _Entries:
    """The last interval is shed, and what follows it is at the beginning: the hash space is a circle."""
    tail = entries[-1][1]
    head = entries[0][1] if entries[0][0] == SHED else 0
    (other, room), *rest = entries[1 if head else 0 : -1]
    step = min(step, tail, room)
    return [(SHED, head + step), (other, room - step), *rest, (other, step), (SHED, tail - step)]


def _merged(entries: _Entries) -> tuple[tuple[str, int], ...]:
    out: _Entries = []
    for name, width in entries:
        if width and out and out[-1][0] == name:
            out[-1] = (name, out[-1][1] + width)
        elif width:
            out.append((name, width))
    return tuple(out)
