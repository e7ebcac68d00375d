"""What the demo shows: tables of the running fleet, and the summary at the end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.demo.load_records import Record, latencies

Status = Mapping[str, Any]


def live(status: Status, recent: Iterable[Record], headline: str) -> Group:
    """The fleet now: one row a front-end, one row an engine. `recent`: what ended in the last seconds."""
    records = list(recent)
    return Group(Text(headline), _frontends(status, records), _engines(status, records))


def _frontends(status: Status, records: list[Record]) -> Table:
    table = Table("front-end", title="front-ends (last 5 s)", title_justify="left")
    for name in ("demand /s", "shares", "ok", "failed", "shed", "TTFT ms", "e2e ms", "e2e p99"):
        table.add_column(name, justify="right" if name != "shares" else "left")
    for frontend, keys in status["demand_rps"].items():
        mine = [record for record in records if record.frontend == frontend]
        shares = status["shares"].get(frontend, {})
        ttft, e2e = _times(mine)
        table.add_row(
            frontend,
            _number(sum(keys.values())),
            "; ".join(shares_text(row) for row in shares.values()),
            str(sum(record.ok for record in mine)),
            str(sum(record.failure is not None for record in mine)),
            str(sum(record.shed for record in mine)),
            _number(ttft["mean"]),
            _number(e2e["mean"]),
            _number(e2e["p99"]),
        )
    return table


def _engines(status: Status, records: list[Record]) -> Table:
    table = Table("engine", title="engines", title_justify="left")
    for name in ("ready", "planned /s", "limit /s", "price ms", "running", "waiting", "TTFT ms", "TBOT ms"):
        table.add_column(name, justify="right")
    for name, engine in status["engines"].items():
        signals = [replica["signals"] for replica in engine["replicas"]]
        table.add_row(
            name,
            str(engine["ready_replicas"]),
            _number(engine["load_rps"]),
            _number(engine["capacity_rps"]),
            _number(engine["price_ms"]),
            _number(_sum(signals, "running")),
            _number(_sum(signals, "waiting")),
            _number(_mean(signals, "ttft_mean_ms")),
            _number(_mean(signals, "tbot_mean_ms")),
        )
    return table


def summary(result: Mapping[str, Any]) -> Table:
    """What the measured part of a run gave, by front-end."""
    table = Table("front-end", title="summary", title_justify="left")
    for name in (
        "requests",
        "ok",
        "failed",
        "shed",
        "served by",
        "TTFT mean",
        "TTFT p99",
        "e2e mean",
        "e2e p99",
    ):
        table.add_column(name, justify="left" if name == "served by" else "right")
    for name, row in {**result["frontends"], "all": result["all"]}.items():
        answered = sum(row["by_engine"].values()) or 1
        table.add_row(
            name,
            *(str(row[field]) for field in ("requests", "ok", "failed", "shed")),
            shares_text({engine: n / answered for engine, n in row["by_engine"].items()}),
            *(_number(row[group][field]) for group in ("ttft_ms", "e2e_ms") for field in ("mean", "p99")),
        )
    return table


def shares_text(row: Mapping[str, float]) -> str:
    """Shares in percent, the largest first."""
    ordered = sorted(row.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {share:.1%}" for name, share in ordered if share >= 0.0005)


def _times(records: list[Record]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    whole = [record for record in records if record.ok]
    ttft = [record.ttft_s for record in whole if record.ttft_s is not None]
    return latencies(ttft), latencies([record.e2e_s for record in whole])


def _sum(signals: list[Mapping[str, float]], name: str) -> float | None:
    values = [each[name] for each in signals if name in each]
    return sum(values) if values else None


def _mean(signals: list[Mapping[str, float]], name: str) -> float | None:
    values = [each[name] for each in signals if each.get(name)]
    return sum(values) / len(values) if values else None


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
