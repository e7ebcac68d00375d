"""The demo under `global`, `nearest` and `round_robin`, one after the other, as the table of the README.

    .venv/bin/python benchmarks/demo_table.py [--duration 40]

Exits with 1 when a claim about the demo does not hold: no failed request; us-east at least 95 % and ap-south
all at home; eu-west 15 to 35 % to ap-south; realised fractions within 3 points of the shares; the global
plan best on mean and p99.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

POLICIES = ("global", "nearest", "round_robin")
KEY = "llama-70b/interactive"


def run(policy: str, duration: float, folder: Path) -> dict[str, Any]:
    """Run the demo and return what it wrote."""
    out = folder / f"{policy}.json"
    command = [sys.executable, "-m", "headrace", "demo", "--duration", str(duration), "--json", str(out)]
    subprocess.run([*command, "--policy-name", policy], check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def row(policy: str, result: dict[str, Any]) -> str:
    """One row of the table."""
    total = result["all"]
    times = [total[group][name] for group in ("ttft_ms", "e2e_ms") for name in ("mean", "p99")]
    return (
        f"| `{policy}` | {total['requests']} | {total['failed']} | "
        + " | ".join(f"{ms:,.0f}" for ms in times)
        + " |"
    )


def broken_claims(results: dict[str, dict[str, Any]]) -> list[str]:
    """What does not hold."""
    best, found = results["global"], []
    shares = {name: rows[KEY] for name, rows in best["shares"].items()}
    if best["all"]["failed"]:
        found.append(f"{best['all']['failed']} requests failed")
    if shares["us-east"].get("us-east-gpu", 0) < 0.95:
        found.append(f"us-east keeps {shares['us-east']}")
    if shares["ap-south"].get("ap-south-gpu", 0) < 1:
        found.append(f"ap-south keeps {shares['ap-south']}")
    if not 0.15 <= shares["eu-west"].get("ap-south-gpu", 0) <= 0.35:
        found.append(f"eu-west sends {shares['eu-west']}")
    for frontend, seen in best["frontends"].items():
        answered = sum(seen["by_engine"].values())
        for engine in {*seen["by_engine"], *shares[frontend]}:
            gap = seen["by_engine"].get(engine, 0) / answered - shares[frontend].get(engine, 0)
            if abs(gap) > 0.03:
                found.append(f"{frontend}: {engine} got {gap:+.1%} against its share")
    for other in POLICIES[1:]:
        for name in ("mean", "p99"):
            if results[other]["all"]["e2e_ms"][name] <= best["all"]["e2e_ms"][name]:
                found.append(f"{other} is better on {name}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=40.0)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        results = {policy: run(policy, arguments.duration, Path(folder)) for policy in POLICIES}
    print("| policy | requests | failed | TTFT mean ms | TTFT p99 | end-to-end mean ms | end-to-end p99 |")
    print("|---|---|---|---|---|---|---|")
    for policy, result in results.items():
        print(row(policy, result))
    for claim in (broken := broken_claims(results)):
        print(f"does not hold: {claim}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
