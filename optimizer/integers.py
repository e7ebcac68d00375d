"""From a flow to published shares: integers of 2^-20 that keep every constraint."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from optimizer.component import Flow
from optimizer.evaluate import loads
from optimizer.layout import Round
from optimizer.problem import UNITS

Array = npt.NDArray[np.float64]

TIGHT = 1e-6
"""An engine this near its capacity (relative) gets no more than its flow."""
SNAP = 1e-4
"""Distance to an integer, in units, that counts as floating-point noise."""


DUST = 1e-9
"""Part of a row or capacity that is floating-point noise: no rule may turn on it."""

SMALL = 0.01
"""Shares below this part of their row and of their engine's capacity may be merged away."""


def merge_small(round_: Round, flow: Flow) -> Flow:
    """The flow without its small shares, when it has more than an optimum without churn can need.

    Churn keeps every old share a little while; without this they pile up (rows + engines is the most that a
    vertex without churn has). What is dropped goes to the row's other engines in proportion, never over a
    capacity or a largest share.
    """
    layout = round_.layout
    x = np.where(flow.x > DUST * round_.demand[:, None], flow.x, 0.0)
    if np.count_nonzero(x) <= len(x) + np.count_nonzero(x.any(axis=0)):
        return flow
    part = x / round_.demand[:, None]
    small = (part > 0) & (part < SMALL) & (x * layout.work < SMALL * round_.capacity)
    load = loads(round_, x)
    for i in np.flatnonzero(small.any(axis=1)).tolist():
        rest = np.where(small[i], 0.0, x[i])
        total = rest.sum()
        if total <= 0.0:
            continue
        new = rest * (x[i].sum() / total)
        after = load + (new - x[i]) * layout.work[i]
        grows = new > x[i]
        fits = np.all(after[grows] <= round_.room[grows] * (1.0 + DUST))
        if fits and np.all(new[grows] <= layout.max_share[grows] * round_.demand[i] * (1.0 + DUST)):
            x[i], load = new, after
    return dataclasses.replace(flow, x=x)


def round_shares(round_: Round, flow: Flow) -> npt.NDArray[np.int64]:
    """[R, E + 1] integers, the last column shed; every row sums to `UNITS`.

    Rounding down leaves a few units a row; they go, largest remainder first, to destinations of the row that
    have room; rows on full engines only share the room that rounding left there.
    """
    exact = np.concatenate([flow.x, flow.shed[:, None]], axis=1)
    exact *= UNITS / exact.sum(axis=1, keepdims=True)
    units = np.floor(exact + SNAP).astype(np.int64)
    rest = UNITS - units.sum(axis=1)
    full = np.append(loads(round_, flow.x) >= round_.capacity * (1.0 - TIGHT), False)
    crowded = []
    for i in np.flatnonzero(rest).tolist():
        support = np.flatnonzero(exact[i] > SNAP)
        open_ = support[~full[support]]
        if not len(open_):
            crowded.append(i)
            continue
        remainder = np.round((exact[i] - units[i])[open_], 4)
        order = open_[np.lexsort((open_, -remainder))]
        step = 1 if rest[i] > 0 else -1
        for turn in range(abs(int(rest[i]))):
            units[i, order[turn % len(order)]] += step
    _squeeze(round_, units, exact, [(i, int(rest[i])) for i in crowded])
    return units


def _squeeze(
    round_: Round, units: npt.NDArray[np.int64], exact: Array, crowded: list[tuple[int, int]]
) -> None:
    """Place the spare units of rows that use full engines only where rounding down left most room.

    Rows with much demand, whose units are large, go first.
    """
    unit = round_.demand / UNITS
    room = round_.capacity - loads(round_, units[:, :-1] * unit[:, None])
    for i, rest in sorted(crowded, key=lambda item: (-unit[item[0]], item[0])):
        support = np.flatnonzero(exact[i, :-1] > SNAP)
        step = 1 if rest > 0 else -1
        for _ in range(abs(rest)):
            j = support[np.argmax(step * room[support] / round_.capacity[support])]
            units[i, j] += step
            room[j] -= step * unit[i] * round_.layout.work[i, j]
