"""The ordered partition of the hash space of one (front-end, key).

Envoy maps a session's hash modulo `UNITS` onto consecutive intervals. The partition remembers which interval
belongs to whom, so that new shares relabel exactly the part of the hash space that has to change hands: the
total-variation distance between old and new shares, the least any assignment can move.

How many intervals there are is bounded by `most_entries`, which least movement alone cannot do. Let many
destinations hand a little each to one that holds next to nothing, so that it touches hardly any of them:
each time an interval begins. Then it hands everything on to a third, and these intervals are the third's.
Repeat with other destinations: intervals grow in number for as long as widths allow. So small intervals are
shifted away, slowly within a budget of movement, and beyond the bound whatever it costs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.errors import ProblemError
from optimizer.problem import UNITS

Entry = tuple[str, int]

SLACK = 0.02
"""Movement that tidying up may add, relative to the movement that new shares need anyway."""

CELLS = 16
"""Equal parts of the hash space in which a partition without history is laid out."""


def entry_limit(destinations: int) -> int:
    """Intervals from which a partition is tidied up within the budget."""
    return 4 * destinations + 8


def most_entries(destinations: int) -> int:
    """The most intervals that a partition ever has after new shares for so many destinations."""
    return 2 * entry_limit(destinations)


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive intervals (destination, width); widths are positive and sum to `UNITS`.

    Neighbours have different destinations. The same destination may own several intervals. Without any
    destination `entries` is empty.
    """

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if self.entries and sum(width for _, width in self.entries) != UNITS:
            raise ProblemError(
                "entries",
                f"widths sum to {sum(w for _, w in self.entries)}; expected {UNITS}",
            )
        for name, width in self.entries:
            if isinstance(width, bool) or not isinstance(width, int) or width <= 0:
                raise ProblemError(f"entries[{name}]", f"width {width!r}; expected a positive integer")

    @classmethod
    def fresh(cls, shares: Mapping[str, float]) -> Partition:
        """A partition without history; a pure function of the shares.

        At most `CELLS` − 1 intervals more than destinations. Each destination fills fixed cells of the hash
        space in an order of its own, so that partitions for similar shares are similar, though not as similar
        as `relabel` makes them.
        """
        return cls(_merge(_lay_out(to_units(shares))))

    def relabel(self, shares: Mapping[str, float], slack: float = SLACK) -> Partition:
        """The partition for new shares that moves the least possible part of the hash space.

        While it would have more than `entry_limit` intervals, small ones are shifted away; that moves at most
        `slack` times the least movement more (0: nothing), unless there would be more than `most_entries`:
        down to those they are shifted away in any case.
        """
        target = to_units(shares)
        if not self.entries or not target:
            return Partition.fresh(shares)
        entries = _merge(_hand_over(self.entries, target))
        least = sum(max(0, width - self.units.get(name, 0)) for name, width in target.items())
        few, most = entry_limit(len(target)), most_entries(len(target))
        return Partition(_compact(entries, int(slack * least), few, most))

    @property
    def units(self) -> dict[str, int]:
        """destination -> total width, by name."""
        total: dict[str, int] = {}
        for name, width in self.entries:
            total[name] = total.get(name, 0) + width
        return dict(sorted(total.items()))

    @property
    def shares(self) -> dict[str, float]:
        """destination -> fraction, exact in floating point."""
        return {name: width / UNITS for name, width in self.units.items()}

    def moved_from(self, old: Partition) -> float:
        """Fraction of the hash space whose destination differs from `old`."""
        if not self.entries or not old.entries:
            return float(bool(self.entries) != bool(old.entries))
        same = 0
        ours, theirs = _ends(self.entries), _ends(old.entries)
        i = j = start = 0
        while start < UNITS:
            end = min(ours[i][1], theirs[j][1])
            same += (end - start) * (ours[i][0] == theirs[j][0])
            i += ours[i][1] == end
            j += theirs[j][1] == end
            start = end
        return 1.0 - same / UNITS

    def to_json(self) -> list[list[Any]]:
        """[[destination, width], …]."""
        return [[name, width] for name, width in self.entries]

    @classmethod
    def from_json(cls, data: Any) -> Partition:
        """The partition that `to_json` wrote.

        Raises:
            ProblemError: not a list of [name, width] pairs that sum to `UNITS`.
        """
        if not isinstance(data, list) or not all(isinstance(e, list | tuple) and len(e) == 2 for e in data):
            raise ProblemError("entries", "expected a list of [destination, width] pairs")
        return cls(tuple((str(name), width) for name, width in data))


def to_units(shares: Mapping[str, float]) -> dict[str, int]:
    """Fractions as integers that sum to `UNITS`, largest remainder first, zeros left out.

    Raises:
        ProblemError: a negative or non-finite share, or no positive one while shares are given.
    """
    for name, share in shares.items():
        if not 0.0 <= share < math.inf:
            raise ProblemError(f"shares[{name}]", f"{share!r}; expected a fraction ≥ 0")
    total = sum(shares.values())
    if not shares or total <= 0.0:
        if shares:
            raise ProblemError("shares", "are all zero; expected at least one positive share")
        return {}
    exact = {name: share / total * UNITS for name, share in sorted(shares.items())}
    units = {name: math.floor(value + 1e-6) for name, value in exact.items()}
    spare = UNITS - sum(units.values())
    order = sorted(units, key=lambda name: (round(units[name] - exact[name], 6), name))
    for name in order[:spare] if spare >= 0 else []:
        units[name] += 1
    for name in reversed(order[spare:] if spare < 0 else []):
        units[name] -= 1
    return {name: width for name, width in units.items() if width > 0}


def _hand_over(entries: tuple[Entry, ...], target: Mapping[str, int]) -> list[Entry]:
    """Entries in which surplus owners give up width to those in deficit, whole small intervals first."""
    have: dict[str, int] = {}
    for name, width in entries:
        have[name] = have.get(name, 0) + width
    surplus = {name: width - target.get(name, 0) for name, width in have.items()}
    given = [0] * len(entries)
    for i in sorted(range(len(entries)), key=lambda i: (entries[i][1], i)):
        name, width = entries[i]
        given[i] = min(width, max(0, surplus[name]))
        surplus[name] -= given[i]
    wanted = {n: w - have.get(n, 0) for n, w in sorted(target.items()) if w > have.get(n, 0)}
    return _fill(entries, given, wanted)


def _fill(entries: tuple[Entry, ...], given: list[int], wanted: dict[str, int]) -> list[Entry]:
    """Give each released piece to a neighbour that wants it, else to whoever wants most."""
    out: list[Entry] = []
    for i, (name, width) in enumerate(entries):
        following = entries[i + 1][0] if i + 1 < len(entries) else ""
        before: list[Entry] = []
        after: list[Entry] = []
        left = given[i]
        if left and following in wanted and following != name:
            left -= _take(wanted, following, left, after)
        if left and out and out[-1][0] in wanted:
            left -= _take(wanted, out[-1][0], left, before)
        while left:
            left -= _take(wanted, max(wanted, key=lambda n: (wanted[n], n)), left, before)
        out += [*before, (name, width - given[i]), *after]
    return out


def _take(wanted: dict[str, int], name: str, width: int, out: list[Entry]) -> int:
    taken = min(width, wanted[name])
    out.append((name, taken))
    wanted[name] -= taken
    if not wanted[name]:
        del wanted[name]
    return taken


def _lay_out(units: Mapping[str, int]) -> list[Entry]:
    """Fill cells with destinations, pair by pair in the order of a hash of both.

    A pair that takes anything uses up the destination or the cell, and the last one both: there are at most
    destinations + `CELLS` − 1 entries.
    """
    left, room = dict(units), [UNITS // CELLS] * CELLS
    cells: list[list[Entry]] = [[] for _ in room]
    for _, name, cell in sorted((_rank(name, cell), name, cell) for name in units for cell in range(CELLS)):
        taken = min(left[name], room[cell])
        left[name] -= taken
        room[cell] -= taken
        cells[cell].append((name, taken))
    return [entry for cell in cells for entry in sorted(cell)]


def _rank(name: str, cell: int) -> bytes:
    return hashlib.blake2b(f"{cell}/{name}".encode(), digest_size=8).digest()


def _compact(entries: tuple[Entry, ...], budget: int, few: int, most: int) -> tuple[Entry, ...]:
    """Shift intervals away, the cheapest first: down to `few` within the budget, down to `most` in any case.

    With more entries than destinations one of them has two intervals, so there is always something to shift;
    each shift leaves at least one entry less.
    """
    while len(entries) > few:
        cost, i, j = min(_shifts(entries))
        if cost > budget and len(entries) <= most:
            break
        entries, budget = _shift(entries, i, j), budget - cost
    return entries


def _shifts(entries: tuple[Entry, ...]) -> Iterator[tuple[int, int, int]]:
    """Every (cost, i, j) where i and j are an owner's intervals with none of its own between them.

    Joining them moves the smaller one's width at each border on the way: that, or less, is the cost.
    """
    last: dict[str, int] = {}
    for j, (name, width) in enumerate(entries):
        if name in last:
            i = last[name]
            yield (j - i) * min(entries[i][1], width), i, j
        last[name] = j


def _shift(entries: tuple[Entry, ...], i: int, j: int) -> tuple[Entry, ...]:
    """Entries in which i and j are one, at the larger one's place; what is between shifts by the smaller."""
    out = list(entries)
    keep, drop = (i, j) if entries[i][1] > entries[j][1] else (j, i)
    out[keep] = (entries[keep][0], entries[i][1] + entries[j][1])
    del out[drop]
    return _merge(out)


def _merge(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    out: list[Entry] = []
    for name, width in entries:
        if not width:
            continue
        if out and out[-1][0] == name:
            width += out.pop()[1]
        out.append((name, width))
    return tuple(out)


def _ends(entries: tuple[Entry, ...]) -> list[tuple[str, int]]:
    end, out = 0, []
    for name, width in entries:
        end += width
        out.append((name, end))
    return out
