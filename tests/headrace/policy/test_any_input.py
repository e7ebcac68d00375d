"""Whatever a file holds, loading gives a policy or a `PolicyError` that says where and what."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.policy import PolicyError, Problem, load
from headrace.policy.problems import Place

VALUES = (
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    "",
    "x",
    "us-east",
    "a b",
    "{01..04}",
    "é\n",
    [],
    ["x", "x"],
    [[]],
    {},
    {"x": {}},
    {"file": "nowhere.yaml"},
)


def base() -> str:
    return (Path(__file__).parent / "conftest.py").read_text().split('BASE = """\\\n')[1].split('"""')[0]


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path of a document below its root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [spot for key, item in inner for spot in ((*path, key), *spots(item, (*path, key)))]


def spoil(document: Any, random_: random.Random) -> None:
    """Replace, remove or add one value somewhere."""
    *parents, last = random_.choice(spots(document))
    inside = document
    for part in parents:
        inside = inside[part]
    action = random_.choice(["replace", "replace", "remove", "add"])
    if action == "remove":
        del inside[last]
    elif action == "add" and isinstance(inside, dict):
        inside[random_.choice(["x", "file", "residency", "members", "table", 12, "no"])] = random_.choice(
            VALUES
        )
    else:
        inside[last] = copy.deepcopy(random_.choice(VALUES))


def problems(file: Path) -> tuple[Problem, ...]:
    try:
        load(file)
    except PolicyError as error:
        return error.problems or (Problem(Place("", 0), "", ""),)
    return ()


def check_outcome(file: Path) -> None:
    assert all(problem.place.file and problem.wrong for problem in problems(file))


@given(seed=st.integers(0, 2**32), faults=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_spoilt_documents(seed, faults, tmp_path_factory):
    random_, document = random.Random(seed), yaml.safe_load(base())
    for _ in range(faults):
        spoil(document, random_)
    file = tmp_path_factory.mktemp("any") / "policy.yaml"
    file.write_text(yaml.safe_dump(document, allow_unicode=True))
    check_outcome(file)


@given(data=st.binary(max_size=200))
@example(data=b"\x00")
@example(data=b"? ? ?")
@example(data=b"a: *b")
@example(data=b"[" * 5000)
@example(data=b"- " * 5000)
@example(data=b"%YAML 9.9\n---\na: b")
@settings(max_examples=100, deadline=None)
def test_any_bytes(data, tmp_path_factory):
    file = tmp_path_factory.mktemp("bytes") / "policy.yaml"
    file.write_bytes(data)
    check_outcome(file)
