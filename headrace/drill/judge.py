"""The verdict on a drill: figures against targets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.drill.drill import Drill, Figures, Target
from headrace.drill.evidence import Evidence
from headrace.drill.figures import usual


@dataclass(frozen=True, slots=True)
class Finding:
    """One target and what came of it."""

    target: Target
    value: float | None
    met: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one drill."""

    drill: Drill
    figures: Mapping[str, float | None]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every target was met."""
        return all(finding.met for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "drill": self.drill.name,
            "what": self.drill.what,
            "passed": self.passed,
            "figures": dict(self.figures),
            "targets": [
                {"target": str(f.target), "value": f.value, "met": f.met, "why": f.target.why}
                for f in self.findings
            ],
        }


def judge(drill: Drill, evidence: Evidence) -> Verdict:
    """Take the figures of a run and hold them against the drill's targets."""
    figures: Figures = {**usual(evidence, drill.reacted), **evidence.notes, **drill.figures(evidence)}
    findings = tuple(
        Finding(target, value := figures.get(target.figure), target.met(value)) for target in drill.targets
    )
    return Verdict(drill, figures, findings)
