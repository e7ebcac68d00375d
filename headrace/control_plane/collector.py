"""Full garbage collections at moments of our own choosing."""

from __future__ import annotations

import gc

SETTLE_EVERY_S = 120.0


def settle() -> None:
    """Collect everything now, and leave what survives out of the automatic collections until the next call.

    The oldest generation holds every stream, member and table. At 1,000 Envoys a full collection stops the
    event loop for a tenth of a second, by itself always in the midst of a burst of work, as that is when
    objects are made: the worst delay of a change on its way to the Envoys (`benchmarks/xds/fanout.py`).
    Cycles that die meanwhile wait for the next call.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
