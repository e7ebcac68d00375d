"""`headrace simulate`: policies against each other on the same simulated fleet."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from headrace.scale import Measured, Times, measure
from headrace.scenario_file import ScaleFile, ScenarioError, ScenarioFile, read_scenario
from headrace.tables import number
from optimizer import POLICIES, ProblemError
from optimizer.simulation import Metrics, Trace, simulate

ROWS: tuple[tuple[str, Callable[[Metrics], str]], ...] = (
    ("TTFT mean", lambda m: number(m.ttft_mean_ms)),
    ("TTFT p99", lambda m: number(m.ttft_p99_ms)),
    ("E2E mean", lambda m: number(m.e2e_mean_ms)),
    ("E2E p99", lambda m: number(m.e2e_p99_ms)),
    ("network", lambda m: number(m.network_mean_ms)),
    ("within SLO", lambda m: f"{m.slo_attainment:.2%}"),
    ("refused", lambda m: f"{m.refused:.2%}"),
    ("failed", lambda m: f"{m.failed:.2%}"),
    ("attempts", lambda m: f"{m.amplification:.3f}"),
    ("busiest", lambda m: f"{m.utilization_max:.2f}"),
    ("moved/min", lambda m: f"{m.moved_per_minute:.2%}"),
    ("reversals/h", lambda m: number(m.reversals_per_hour)),
    ("settled, s", lambda m: number(m.settled_s, 0)),
    ("overshoot", lambda m: f"{m.overshoot:.1%}"),
    ("gap", lambda m: "–" if math.isnan(m.gap_mean) else f"{m.gap_mean:.4%}"),
)


def _took(times: Times | None) -> str:
    return "–" if times is None else f"{number(times.wall_ms, 0)} / {number(times.cpu_ms, 0)}"


SCALE_ROWS: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("cold", lambda m: _took(m.cold)),
    ("warm", lambda m: _took(m.warm)),
    ("quiet", lambda m: _took(m.quiet)),
    ("quiet rounds", lambda m: f"{m.quiet.rounds if m.quiet else 0} of {m.warm.rounds}"),
    ("largest gap", lambda m: f"{m.gap:.4%}"),
    ("intervals a row: mean", lambda m: number(m.entries_mean)),
    ("intervals a row: most", lambda m: f"{m.entries_most:,}"),
    ("route bytes", lambda m: f"{m.rds_bytes:,}"),
    ("all bytes", lambda m: f"{m.snapshot_bytes:,}"),
)


@click.command()
@click.argument("scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy-name", "names", multiple=True, type=click.Choice(sorted(POLICIES)), help="Only these."
)
@click.option("--seed", type=int, help="Another draw of demand.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="PNG of latency and shares over time."
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(
    scenario: Path, names: tuple[str, ...], seed: int | None, plot: Path | None, as_json: bool
) -> None:
    """Run a scenario file in a closed loop, every policy on the same demand and faults.

    Demand is measured late and noisy, plans take effect later, engines queue, fail and slow down. A scenario
    with `scale` instead measures how long fleets of its sizes take to plan and what Envoys are sent.
    """
    try:
        file = read_scenario(scenario)
        if seed is not None:
            file = file.model_copy(update={"seed": seed})
        if isinstance(file, ScaleFile):
            if names or plot:
                raise ScenarioError(f"{scenario}: --policy-name and --plot need a scenario without `scale`")
            _scale(file, as_json)
        else:
            _closed_loop(file, scenario, names, plot, as_json)
    except (ScenarioError, ProblemError) as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None


def _closed_loop(
    file: ScenarioFile, path: Path, names: tuple[str, ...], plot: Path | None, as_json: bool
) -> None:
    unknown = sorted(set(file.policies) - set(POLICIES))
    if unknown:
        expected = ", ".join(sorted(POLICIES))
        raise ScenarioError(f"{path}: policies: {unknown[0]!r}; expected {expected}")
    policies = names or file.policies or tuple(POLICIES)
    runs = [
        (scale, [simulate(file.build(scale), policy) for policy in policies]) for scale in file.demand_scales
    ]
    if as_json:
        click.echo(json.dumps([_plain(scale, trace) for scale, traces in runs for trace in traces], indent=2))
    else:
        for scale, traces in runs:
            Console().print(_table(file, scale, traces))
    if plot is not None:
        _draw(runs[-1][1], plot)


def _scale(file: ScaleFile, as_json: bool) -> None:
    scale = file.build()
    rows = [measure(scale, *size) for size in scale.sizes]
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        Console().print(_scale_table(file, rows))


def _scale_table(file: ScaleFile, rows: list[Measured]) -> Table:
    table = Table(
        "",
        title=file.name,
        caption="Times: median wall / CPU, ms. Bytes: of the front-end with the most intervals.",
    )
    for row in rows:
        table.add_column(f"{row.frontends} × {row.engines:,}", justify="right")
    for name, show in SCALE_ROWS:
        table.add_row(name, *(show(row) for row in rows))
    return table


def _table(file: ScenarioFile, scale: float, traces: list[Trace]) -> Table:
    times = "" if len(file.demand_scales) == 1 else f", demand × {scale:g}"
    table = Table("ms", title=f"{file.name}{times}")
    for trace in traces:
        table.add_column(trace.policy.replace("_", " "), justify="right")
    for name, show in ROWS:
        table.add_row(name, *(show(trace.metrics) for trace in traces))
    return table


def _plain(scale: float, trace: Trace) -> dict[str, Any]:
    metrics = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(trace.metrics).items()
    }
    return {"policy": trace.policy, "demand_scale": scale, **metrics}


def _draw(traces: list[Trace], path: Path) -> None:
    """Latency of every policy, and the part of all demand on each engine under the first one."""
    from headrace.plots import figure

    with figure(
        path, "time, s", ["mean end-to-end latency, ms", f"part of demand ({traces[0].policy})"]
    ) as axes:
        for trace in traces:
            axes[0].plot(trace.time_s, trace.e2e_ms, label=trace.policy, linewidth=1)
        axes[0].set_yscale("log")
        for j, name in enumerate((*traces[0].engines, "refused")):
            axes[1].plot(traces[0].time_s, traces[0].fleet_share[:, j], label=name, linewidth=1)
        for panel in axes:
            panel.legend(fontsize="small")
