"""From a flow to published shares: integers of 2^-20 that keep every constraint."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from optimizer.component import Flow
from optimizer.evaluate import loads
from optimizer.layout import Round
from optimizer.problem import UNITS

TIGHT = 1e-6
"""An engine this near its capacity (relative) gets no more than its flow."""
SNAP = 1e-4
"""Distance to an integer, in units, that counts as floating-point noise."""


def round_shares(round_: Round, flow: Flow) -> npt.NDArray[np.int64]:
    """[R, E + 1] integers, the last column shed; every row sums to `UNITS`.

    Rounding down leaves a few units a row; they go, largest remainder first, to destinations of the row that
    have room, to a full engine only when the row has nothing else.
    """
    exact = np.concatenate([flow.x, flow.shed[:, None]], axis=1)
    exact *= UNITS / exact.sum(axis=1, keepdims=True)
    units = np.floor(exact + SNAP).astype(np.int64)
    rest = UNITS - units.sum(axis=1)
    full = np.append(loads(round_, flow.x) >= round_.capacity * (1.0 - TIGHT), False)
    for i in np.flatnonzero(rest).tolist():
        support = np.flatnonzero(exact[i] > SNAP)
        remainder = np.round((exact[i] - units[i])[support], 4)
        room = ~full[support]
        order = support[np.lexsort((support, -remainder, ~room))]
        usable = order[: max(1, int(room.sum()))]
        step = 1 if rest[i] > 0 else -1
        for turn in range(abs(int(rest[i]))):
            units[i, usable[turn % len(usable)]] += step
    return units
