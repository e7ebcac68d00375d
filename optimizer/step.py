"""Going to a target in steps, so that no row loses more than a part of its sessions at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from optimizer.component import Flow
from optimizer.evaluate import loads
from optimizer.integers import DUST
from optimizer.layout import Round

Array = npt.NDArray[np.float64]


def stepped(round_: Round, target: Flow, max_step: float) -> Flow:
    """A flow on the straight way from what is held to the target, all rows by the same part of it.

    What cannot stay (new traffic, an engine lost, what was refused) goes where the target has it at once.
    The part is the largest with which no row moves more than `max_step` of itself, or the least that brings
    every engine within its capacity when that is more. As only what the target gains is gained, no other
    traffic is moved aside for the time that the way takes: a program with limited moves does that, and
    takes it back later.
    """
    d = round_.demand[:, None]
    wanted = np.concatenate([target.x, target.shed[:, None]], axis=1) / d
    held = np.concatenate([round_.held, np.zeros_like(d)], axis=1)
    start = held + np.maximum(0.0, 1.0 - held.sum(axis=1, keepdims=True)) * wanted
    way = wanted - start
    longest = float(np.maximum(way, 0.0).sum(axis=1).max(initial=0.0))
    if longest <= max_step * (1.0 + DUST):
        return target
    before, after = (loads(round_, (d * part)[:, :-1]) for part in (start, wanted))
    part = min(1.0, max(max_step / longest, _until_within(round_.room, before, after)))
    flow = d * (start + part * way)
    note = f"{part:.0%} of the way to the target"
    return dataclasses.replace(target, x=flow[:, :-1], shed=flow[:, -1], notes=(*target.notes, note))


def _until_within(room: Array, before: Array, after: Array) -> float:
    """The least part of the way from `before` to `after` at which no load is above its room."""
    over = (before > room * (1.0 + DUST)) & (after < before)
    need = np.divide(before - room, before - after, out=np.zeros_like(room), where=over)
    return float(need.max(initial=0.0))
