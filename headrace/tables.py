"""Plans as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table

from optimizer import Plan, Shares


def plan_tables(plan: Plan, before: Shares | None = None) -> Iterator[Table]:
    """A summary, the shares and the engines of a plan; against `before`, what changed."""
    yield _summary(plan)
    yield _shares(plan, before)
    yield _engines(plan)


def number(value: float, digits: int = 1) -> str:
    """A number for a table cell; infinite and undefined values by name."""
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:,.{digits}f}"


def _summary(plan: Plan) -> Table:
    table = Table(title=f"Plan by policy {plan.policy}", show_header=False)
    mean = "per request of demand"
    table.add_row("objective", f"{number(plan.objective_ms, 3)} ms {mean}")
    table.add_row("no plan is better than", f"{number(plan.lower_bound_ms, 3)} ms (gap {plan.gap:.4%})")
    table.add_row("mean end-to-end latency", f"{number(plan.e2e_ms, 3)} ms of requests served")
    if plan.shed_rps:
        table.add_row("refused on purpose", f"{number(plan.shed_rps)} requests/s")
    if not plan.feasible:
        table.add_row("warning", "an engine is over its effective capacity")
    table.add_row("solved in", f"{plan.solve_ms:.1f} ms" + ("" if plan.exact else ", not to the optimum"))
    for note in plan.notes:
        table.add_row("note", note)
    return table


def _shares(plan: Plan, before: Shares | None) -> Table:
    table = Table("front-end", "model/class", "destination", "share", title="Shares")
    if before is not None:
        table.add_column("before")
    for frontend, rows in plan.shares.items():
        for key, row in rows.items():
            old = (before or {}).get(frontend, {}).get(key, {})
            for name in sorted({*row, *old}):
                cells = [frontend, key, name, f"{row.get(name, 0.0):.4f}"]
                if before is not None:
                    cells.append(f"{old.get(name, 0.0):.4f}")
                table.add_row(*cells)
            reason = plan.unserved.get(frontend, {}).get(key)
            if reason:
                table.add_row(frontend, key, "[red]unserved[/red]", reason)
    return table


def _engines(plan: Plan) -> Table:
    table = Table("engine", "load", "capacity", "price ms", "TTFT ms", "TBOT ms", title="Engines (work/s)")
    for name, engine in plan.engines.items():
        table.add_row(
            name,
            number(engine.load_rps, 2),
            number(engine.capacity_rps, 2),
            number(engine.price_ms),
            number(engine.ttft_ms),
            number(engine.tbot_ms),
        )
    return table
