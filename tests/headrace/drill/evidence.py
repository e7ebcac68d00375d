"""Made-up evidence: ten calm seconds from 0, a fault from 10 to 20, and after it until 30."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace.demo.load_records import Record
from headrace.drill.evidence import Counters, Evidence, Sample

KEY = "chat/interactive"
ANSWER = Record("west", "s", 0.0, False, 200, "west-gpu", "r1", None, 0.1, None)


def answers(start: float, stop: float, **changes: Any) -> list[Record]:
    """Ten answers a second."""
    number = round((stop - start) * 10)
    return [replace(ANSWER, arrived_at=start + step / 10, **changes) for step in range(number)]


def sample(at: float, ready: int = 2, **shares: float) -> Sample:
    """A look at front-end west with these shares (engine names with _ for -)."""
    named = {("west", KEY, name.replace("_", "-")): share for name, share in shares.items()}
    return Sample(at, "planning", 1, named, {"west-gpu": ready})


def evidence(
    records: Iterable[Record] = (),
    samples: Iterable[Sample] = (),
    counters: Iterable[Counters] = (),
    notes: Mapping[str, float | None] | None = None,
) -> Evidence:
    return Evidence(
        calm_from=0.0,
        fault_from=10.0,
        fault_to=20.0,
        end=30.0,
        records={"all": tuple(records)},
        samples=tuple(samples),
        counters=tuple(counters),
        capacity_rps=20.0,
        replicas={"west-gpu": 2},
        notes=notes or {},
    )
