"""The rooms of the house: who may import whom (the core packages stand alone)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"optimizer", "signals", "xds_server", "headrace"}
MAY_IMPORT = {"optimizer": set(), "signals": set(), "xds_server": set(), "headrace": OURS}
INPUT_OUTPUT = {"asyncio", "socket", "grpc", "aiohttp", "subprocess", "threading", "logging", "structlog"}


def imports(package: str) -> set[tuple[str, str]]:
    """(file, top-level name imported) of every module of a package."""
    found = set()
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            else:
                continue
            found |= {(str(path.relative_to(ROOT)), name.split(".")[0]) for name in names}
    return found


@pytest.mark.parametrize("package", sorted(OURS))
def test_a_package_imports_only_what_it_may(package: str):
    forbidden = OURS - MAY_IMPORT[package] - {package}
    assert [item for item in imports(package) if item[1] in forbidden] == []


def test_the_optimizer_does_no_input_or_output():
    assert [item for item in imports("optimizer") if item[1] in INPUT_OUTPUT] == []


def test_the_xds_core_knows_no_transport():
    core = [item for item in imports("xds_server") if item[0].startswith("xds_server/protocol/")]
    assert core
    assert [item for item in core if item[1] in INPUT_OUTPUT] == []
    hub = [item for item in imports("xds_server") if item[0] == "xds_server/server.py"]
    assert [item for item in hub if item[1] in INPUT_OUTPUT - {"logging"}] == []


def test_envoy_is_no_python_package():
    assert not list((ROOT / "envoy").rglob("*.py"))
