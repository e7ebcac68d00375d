"""Tables of a control plane's status. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text


def overview(status: Mapping[str, Any]) -> Group:
    """What is served, one row a front-end and key, and who serves it, one row an engine."""
    return Group(*map(Text, _headlines(status)), _rows(status), _engines(status))


def _headlines(status: Mapping[str, Any]) -> Iterator[str]:
    round_ = status["last_round"] or {}
    yield (
        f"fleet {status['fleet']} · revision {status['revision'] or '–'} · snapshot {status['snapshot']} · "
        f"{status['mode']} · last round: {round_.get('result', 'none yet')}, {round_.get('reason', '')}"
    )
    if status["policy_error"]:
        yield f"the policy file is refused: {status['policy_error'].splitlines()[0]}"
    if status["policy_pending"]:
        yield f"an edit of the policy is held: {'; '.join(status['policy_pending']['reasons'])}"
    for item in status["refused_reporters"][:5]:
        yield f"reports refused: {item['engine'] or item['peer']}: {item['reason']} ({item['times']} times)"


def _rows(status: Mapping[str, Any]) -> Table:
    envoys = Counter(envoy["frontend"] for envoy in status["envoys"])
    table = Table("front-end", "Envoys", "model/class", "demand /s", "shares")
    for frontend, keys in status["demand_rps"].items():
        for key, rps in keys.items():
            shares = status["shares"].get(frontend, {}).get(key, {})
            ordered = sorted(shares.items(), key=lambda item: -item[1])
            text = ", ".join(f"{name} {share:.1%}" for name, share in ordered if share >= 0.0005)
            table.add_row(frontend, str(envoys[frontend]), key, f"{rps:.1f}", text or "nothing serves it")
    return table


def _engines(status: Mapping[str, Any]) -> Table:
    table = Table("engine", "ready", "not ready", "load /s", "limit /s", "price ms", "penalty", "why")
    for name, engine in status["engines"].items():
        others = Counter(_state(replica) for replica in engine["replicas"]) - Counter(
            {"ready": len(engine["replicas"])}
        )
        table.add_row(
            name,
            str(engine["ready_replicas"]),
            ", ".join(f"{number} {state}" for state, number in sorted(others.items())),
            *(_number(engine[field]) for field in ("load_rps", "capacity_rps", "price_ms")),
            f"{engine['penalty']:.2f}",
            engine["penalty_reason"]
            if engine["penalty"] != 1
            else (engine["learning"] or {}).get("text", ""),
        )
    return table


def _state(replica: Mapping[str, Any]) -> str:
    if replica["quarantined"]:
        return "quarantined"
    return "silent" if replica["silent"] else str(replica["state"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
