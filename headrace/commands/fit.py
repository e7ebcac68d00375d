"""`headrace fit`: a profile from measurements."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import click
import yaml

from optimizer import ProblemError
from optimizer.fit import Fit, Measurement, fit_profile, little_rps

THROUGHPUT = "output_tokens_per_s"
LOADS = ("load_rps", "rps", "request_rate", THROUGHPUT, "concurrency")
ALIASES = {
    "ttft_ms": ("ttft_ms", "mean_ttft_ms"),
    "tbot_ms": ("tbot_ms", "tpot_ms", "mean_tpot_ms", "itl_ms"),
}


@click.command()
@click.argument("measurements", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Profile file to write; else stdout."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="PNG of data against fit.")
@click.option("--ttft-slo-ms", type=float, help="Capacity is the largest load within it.")
@click.option("--tbot-slo-ms", type=float, help="Capacity is the largest load within it.")
@click.option("--input-tokens", type=float, help="Mean prompt of the measured requests.")
@click.option("--output-tokens", type=float, help="Mean answer; needed when load is given as concurrency.")
@click.option("--replicas", type=float, default=1.0, show_default=True, help="Replicas that shared the load.")
@click.option("--form", type=click.Choice(["auto", "parametric", "table"]), default="auto", show_default=True)
@click.option("--source", default="", help="Where the numbers come from; kept in the profile.")
def command(
    measurements: Path,
    out: Path | None,
    plot: Path | None,
    ttft_slo_ms: float | None,
    tbot_slo_ms: float | None,
    input_tokens: float | None,
    output_tokens: float | None,
    replicas: float,
    form: str,
    source: str,
) -> None:
    """Fit a profile of one replica to MEASUREMENTS, a CSV file with a header.

    Columns: load_rps (requests/s), output_tokens_per_s or concurrency (the first found counts); ttft_ms;
    tbot_ms (or tpot_ms). The profile goes into a
    policy as `{file: …}`.
    """
    try:
        points = read_measurements(measurements, output_tokens, replicas)
        fit = fit_profile(points, ttft_slo_ms=ttft_slo_ms, tbot_slo_ms=tbot_slo_ms, form=form)
    except (ProblemError, ValueError) as error:
        click.echo(f"{measurements}: {error}", err=True)
        raise SystemExit(2) from None
    text = yaml.safe_dump(
        document(fit, source or measurements.name, input_tokens, output_tokens), sort_keys=False
    )
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        click.echo(summary(fit))
    if plot is not None:
        draw(fit, points, plot)


def read_measurements(path: Path, output_tokens: float | None, replicas: float) -> list[Measurement]:
    """The rows of a CSV file.

    Raises:
        ValueError: no header, a missing column, or a value that is not a number; with its line.
    """
    if not replicas > 0:
        raise ValueError(f"--replicas {replicas}; expected more than 0")
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        names = [name.strip().lower() for name in rows.fieldnames or ()]
        rows.fieldnames = names
        load = next((name for name in LOADS if name in names), None)
        if load is None:
            raise ValueError(f"no load column; expected one of {', '.join(LOADS)}")
        columns = {
            what: next((name for name in choices if name in names), None) for what, choices in ALIASES.items()
        }
        for what, found in columns.items():
            if found is None:
                raise ValueError(f"no column {what}; expected one of {', '.join(ALIASES[what])}")
        if load in (THROUGHPUT, "concurrency") and output_tokens is None:
            raise ValueError(f"load is given as {load}: --output-tokens is needed to turn it into requests/s")
        return [
            _measurement(
                number, row, load, str(columns["ttft_ms"]), str(columns["tbot_ms"]), output_tokens, replicas
            )
            for number, row in enumerate(rows, start=2)
        ]


def _measurement(
    line: int,
    row: dict[str, Any],
    load: str,
    ttft: str,
    tbot: str,
    output_tokens: float | None,
    replicas: float,
) -> Measurement:
    try:
        values = [float(row[name]) for name in (load, ttft, tbot)]
    except (TypeError, ValueError):
        raise ValueError(f"line {line}: {dict(row)}; expected numbers in {load}, {ttft}, {tbot}") from None
    if not all(map(math.isfinite, values)):
        raise ValueError(f"line {line}: {dict(row)}; expected finite numbers")
    rate = values[0]
    if load == THROUGHPUT:
        rate /= output_tokens or 1.0
    elif load == "concurrency":
        rate = little_rps(rate, values[1], values[2], output_tokens or 1.0)
    return Measurement(rate / replicas, values[1], values[2])


def document(
    fit: Fit, source: str, input_tokens: float | None, output_tokens: float | None
) -> dict[str, Any]:
    """The profile as a policy file takes it, with the quality of the fit beside it."""
    out: dict[str, Any] = _rounded(fit.profile.to_dict())
    if input_tokens and output_tokens:
        out["reference"] = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    out["source"] = source
    out["fit"] = _rounded(
        {
            "form": fit.form,
            "points": fit.points,
            "t0_ms": fit.t0_ms,
            "t0_error_ms": _known(fit.t0_error_ms),
            "lambda_max_rps": fit.lambda_max_rps,
            "lambda_max_error_rps": _known(fit.lambda_max_error_rps),
            "r_squared": fit.r_squared,
            "tbot_mean_error": fit.tbot_error,
            "ttft_mean_error": fit.ttft_error,
            "notes": list(fit.notes),
        }
    )
    return out


def summary(fit: Fit) -> str:
    """The fit in one line a fact."""
    lines = [
        f"{fit.form} profile from {fit.points} loads,"
        f" capacity {fit.profile.capacity_rps:.4g} requests/s a replica",
        f"t0 {fit.t0_ms:.4g} ± {fit.t0_error_ms:.2g} ms, λmax {fit.lambda_max_rps:.4g} ±"
        f" {fit.lambda_max_error_rps:.2g} requests/s, R² {fit.r_squared:.4f}",
        f"mean error: TBOT {fit.tbot_error:.1%}, TTFT {fit.ttft_error:.1%}",
    ]
    return "\n".join([*lines, *fit.notes])


def draw(fit: Fit, points: list[Measurement], path: Path) -> None:
    """Data against fit: TBOT with the range of one standard error, and TTFT."""
    from headrace.plots import figure

    with figure(path, "Load of one replica, requests/s", ["TBOT, ms", "TTFT, ms"]) as (left, right):
        end = min(1.02 * max(p.load_rps for p in points), 0.98 * fit.profile.curve.pole_rps)
        loads = [end * i / 200 for i in range(201)]
        for axes, curve, name in (
            (left, [fit.profile.tbot_ms(x) for x in loads], "tbot_ms"),
            (right, [fit.profile.ttft_ms(x) for x in loads], "ttft_ms"),
        ):
            axes.plot(loads, curve, label=f"fit ({fit.form})")
            axes.scatter(
                [p.load_rps for p in points], [getattr(p, name) for p in points], label="measured", zorder=3
            )
            axes.axvline(fit.profile.capacity_rps, linestyle=":", color="grey", label="capacity")
            axes.legend()
        if fit.form == "parametric" and math.isfinite(fit.t0_error_ms):
            t0, lam = fit.t0_ms, fit.lambda_max_rps
            band = [
                [
                    (t0 + s * fit.t0_error_ms) / max(1e-3, 1 - x / (lam - s * fit.lambda_max_error_rps))
                    for x in loads
                ]
                for s in (-1, 1)
            ]
            left.fill_between(loads, band[0], band[1], alpha=0.2)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
