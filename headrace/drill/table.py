"""How drills and their outcomes are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from headrace.drill.drill import Drill
from headrace.drill.judge import Verdict

_COLUMNS = {
    "requests": "requests",
    "failed": "failed",
    "without_headers": "without headers",
    "cut": "cut",
    "shed": "shed",
    "retried": "retried",
    "added_p50_ms": "added p50 ms",
    "added_p99_ms": "added p99 ms",
    "react_s": "react s",
    "recover_s": "recover s",
}


def listing(drills: Iterable[Drill]) -> Table:
    """What there is to run."""
    table = Table("drill", "what is done", "s")
    for drill in drills:
        table.add_row(drill.name, drill.what, f"{drill.length_s:.0f}")
    return table


def results(verdicts: Iterable[Verdict]) -> Table:
    """One row a drill."""
    table = Table("drill", *_COLUMNS.values(), "targets")
    for verdict in verdicts:
        row = (number(verdict.figures.get(name)) for name in _COLUMNS)
        table.add_row(verdict.drill.name, *row, "met" if verdict.passed else "missed")
    return table


def details(verdict: Verdict) -> str:
    """The targets of a drill and its other figures, in lines of text."""
    lines = [
        f"  {'met   ' if f.met else 'MISSED'} {f.target}: {number(f.value)} ({f.target.why})"
        for f in verdict.findings
    ]
    shown = {f.target.figure for f in verdict.findings}
    others = ", ".join(f"{n} {number(v)}" for n, v in verdict.figures.items() if n not in shown)
    return "\n".join([*lines, f"  {others}"])


def number(value: float | None) -> str:
    """A figure with three digits."""
    if value is None:
        return "–"
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"
