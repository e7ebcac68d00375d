"""Drills in which there is more demand than capacity."""

from __future__ import annotations

from headrace.demo.load_records import Record
from headrace.drill.drill import Drill, Figures, Stream, Target
from headrace.drill.evidence import Evidence, Sample, arrived
from headrace.drill.figures import mean_e2e_ms
from headrace.drill.policy import CLASS_HEADER, two_classes

_SETTLE_S = 20.0
"""The steady part of the overload begins so long after its start: smoothed demand has arrived, and what the
first seconds left in the queues is done."""
_SHED = "shed"


def _sheds(before: Sample, now: Sample) -> bool:
    return any(name == _SHED and share > 0.01 for (_, _, name), share in now.shares.items())


def _overload(evidence: Evidence) -> Figures:
    steady = evidence.fault_from + _SETTLE_S
    every, high = evidence.all_records(), evidence.records["interactive"]
    calm = mean_e2e_ms(arrived(high, evidence.calm_from, evidence.fault_from))
    hurt = mean_e2e_ms(arrived(high, steady, evidence.fault_to))
    first = mean_e2e_ms(arrived(high, evidence.fault_from, steady))
    return {
        "goodput": _goodput(evidence, steady, evidence.fault_to),
        "goodput_from_start": _goodput(evidence, evidence.fault_from, evidence.fault_to),
        "interactive_shed": sum(r.shed for r in arrived(high, evidence.fault_from, evidence.end)),
        "interactive_ratio": hurt / calm if calm and hurt else None,
        "interactive_p50_ratio": _p50_ratio(evidence, steady),
        "interactive_ratio_from_start": first / calm if calm and first else None,
        "batch_shed": sum(
            r.shed for r in arrived(evidence.records["batch"], evidence.fault_from, evidence.end)
        ),
        "refused_other_than_429": sum(_refused_otherwise(record) for record in every),
    }


def _p50_ratio(evidence: Evidence, steady: float) -> float | None:
    high = evidence.records["interactive"]
    calm = _median(arrived(high, evidence.calm_from, evidence.fault_from))
    hurt = _median(arrived(high, steady, evidence.fault_to))
    return hurt / calm if calm and hurt else None


def _median(records: list[Record]) -> float | None:
    times = sorted(record.e2e_s for record in records if record.ok)
    return times[len(times) // 2] if times else None


def _goodput(evidence: Evidence, start: float, stop: float) -> float | None:
    """Whole answers per second that ended between, over what the plan may use."""
    if stop <= start:
        return None
    ended = sum(
        record.ok and start <= record.arrived_at + record.e2e_s < stop for record in evidence.all_records()
    )
    return ended / (stop - start) / evidence.capacity_rps


def _refused_otherwise(record: Record) -> bool:
    """Envoy refused it, and not as a shed request."""
    return record.engine is None and record.status is not None and record.status not in (200, 429)


DRILLS = (
    Drill(
        "demand-doubled",
        "Demand of two classes doubles from 80 % of nominal capacity to 160 % (94 % to 188 % of what may be "
        "planned with) for 40 s; batch has the lower priority.",
        (
            Target("goodput", at_least=0.95, why="DESIGN §9, after 20 s"),
            Target("interactive_ratio", at_most=1.10, why="DESIGN §9: mean latency within 10 % of calm"),
            Target("interactive_shed", at_most=0, why="DESIGN §9: higher class unharmed"),
            Target("failed", at_most=0, why="DESIGN §9: every refusal 429"),
            Target("refused_unhelpfully", at_most=0, why="DESIGN §9: with Retry-After"),
        ),
        reacted=_sheds,
        figures=_overload,
        streams=(
            Stream("interactive", calm=0.3, fault=0.6),
            Stream("batch", calm=0.5, fault=1.0, headers={CLASS_HEADER: "batch"}),
        ),
        amend=two_classes,
        warm_s=20.0,
        calm_s=15.0,
        fault_s=40.0,
        after_s=12.0,
    ),
)
