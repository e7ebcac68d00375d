"""Plans as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rich.table import Table

from headrace.saved_plan import SavedPlan
from optimizer import Plan, Problem, Shares


def plan_tables(plan: Plan, problem: Problem, saved: SavedPlan | None = None) -> Iterator[Table]:
    """A summary, the shares, what moved of those published, and the engines; beside a saved plan's values."""
    yield _summary(plan, problem)
    yield _shares(plan, saved.shares if saved else None)
    if any(part > 0 for row in plan.moved.values() for part in row.values()):
        yield _movement(plan, problem.previous_shares or {})
    yield _engines(plan, saved)


def number(value: float, digits: int = 1) -> str:
    """A number for a table cell; infinite and undefined values by name."""
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:,.{digits}f}"


def _summary(plan: Plan, problem: Problem) -> Table:
    table = Table(title=f"Plan by policy {plan.policy}", show_header=False)
    mean = "per request of demand"
    table.add_row("objective", f"{number(plan.objective_ms, 3)} ms {mean}")
    table.add_row("no plan is better than", f"{number(plan.lower_bound_ms, 3)} ms (gap {plan.gap:.4%})")
    table.add_row("mean end-to-end latency", f"{number(plan.e2e_ms, 3)} ms of requests served")
    table.add_row("moved", _moved(plan, problem))
    if plan.shed_rps:
        table.add_row("refused on purpose", f"{number(plan.shed_rps)} requests/s")
    if not plan.feasible:
        table.add_row("warning", "an engine is over its effective capacity")
    table.add_row("solved in", f"{plan.solve_ms:.1f} ms" + ("" if plan.exact else ", not to the optimum"))
    for note in plan.notes:
        table.add_row("note", note)
    return table


def _moved(plan: Plan, problem: Problem) -> str:
    """The moved part of all demand."""
    if not problem.previous_shares:
        return "nothing was published before"
    demand = problem.demand_rps
    total = sum(sum(row.values()) for row in demand.values())
    moved = sum(demand[f][k] * part for f, row in plan.moved.items() for k, part in row.items())
    return f"{moved / total if total else 0.0:.2%} of demand: {number(moved, 2)} requests/s"


def _shares(plan: Plan, before: Shares | None) -> Table:
    table = Table("front-end", "model/class", "destination", "share", title="Shares")
    if before is not None:
        table.add_column("before")
    old_rows = before or {}
    for frontend in sorted({*plan.shares, *old_rows}):
        rows, were = plan.shares.get(frontend, {}), old_rows.get(frontend, {})
        for key in sorted({*rows, *were}):
            row, old = rows.get(key, {}), were.get(key, {})
            for name in sorted({*row, *old}):
                cells = [frontend, key, name, f"{row.get(name, 0.0):.4f}"]
                if before is not None:
                    cells.append(f"{old.get(name, 0.0):.4f}")
                table.add_row(*cells)
            reason = plan.unserved.get(frontend, {}).get(key)
            if reason:
                table.add_row(frontend, key, "[red]unserved[/red]", reason)
    return table


def _movement(plan: Plan, published: Shares) -> Table:
    table = Table("front-end", "model/class", "moved", "from", "to", title="Movement of published shares")
    for frontend, rows in plan.moved.items():
        for key, part in rows.items():
            if part > 0:
                changes = _changes(plan.shares[frontend][key], published[frontend][key])
                away = _listed({name: -change for name, change in changes.items()})
                table.add_row(frontend, key, f"{part:.2%}", away, _listed(changes))
    return table


def _changes(new: Mapping[str, float], old: Mapping[str, float]) -> dict[str, float]:
    """What each destination has more of than before, fractions of the row."""
    total = sum(old.values())
    return {name: new.get(name, 0.0) - old.get(name, 0.0) / total for name in sorted({*new, *old})}


def _listed(changes: Mapping[str, float]) -> str:
    """`a 12.00%, b 3.00%` of the positive ones; less than a hundredth of a per cent is rounding."""
    return ", ".join(f"{name} {change:.2%}" for name, change in changes.items() if change >= 0.5e-4)


def _engines(plan: Plan, saved: SavedPlan | None) -> Table:
    table = Table("engine", "load", "capacity", "price ms", "TTFT ms", "TBOT ms", title="Engines (work/s)")
    if saved is not None:
        table.add_column("load before")
        table.add_column("price before")
    for name, engine in plan.engines.items():
        cells = [
            name,
            number(engine.load_rps, 2),
            number(engine.capacity_rps, 2),
            number(engine.price_ms),
            number(engine.ttft_ms),
            number(engine.tbot_ms),
        ]
        if saved is not None:
            old = saved.engines.get(name, {})
            cells += [number(old.get("load_rps", math.nan), 2), number(old.get("price_ms", math.nan))]
        table.add_row(*cells)
    return table
