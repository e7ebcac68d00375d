"""How long `headrace check` takes on a fleet at the stated limits: target 1 s, whole process.

    python benchmarks/policy_check.py [--runs 5]

100 front-ends, 1,000 engines, 50 models, 10 classes, 10,000 adapter names. Prints the times of a fresh
process (interpreter, imports, reading, all checks), of `--effective`, and of loading alone, each beside the
example of a small fleet.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType

from headrace.policy import load

ROOT = Path(__file__).parents[1]
TARGET_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        big = Path(folder) / "policy.yaml"
        big.write_text(_limits().fleet())
        print(f"{big.stat().st_size / 1024:.0f} KiB of policy, median of {runs} runs, target {TARGET_S:g} s")
        for name, path in (("limits", big), ("example", ROOT / "examples" / "policy.yaml")):
            for what, call in (
                ("check", partial(_check, path)),
                ("check --effective", partial(_check, path, "--effective")),
                ("load()", partial(load, path)),
            ):
                print(f"{name:8} {what:18}{_timed(call, runs):6.3f} s")


def _check(path: Path, *options: str) -> None:
    command = [str(Path(sys.executable).parent / "headrace"), "check", str(path), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _timed(call: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def _limits() -> ModuleType:
    """The test that states the limits also writes the fleet."""
    spec = importlib.util.spec_from_file_location("limits", ROOT / "tests/headrace/policy/test_limits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
