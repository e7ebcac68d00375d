"""Pages that cite a test as their evidence cite one that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "what-goes-wrong.md"
CITED = sorted(set(re.findall(r"`(\S+\.py)::(test_\w+)`", PAGE.read_text())))


@pytest.mark.parametrize(("path", "name"), CITED)
def test_a_cited_test_exists(path: str, name: str):
    assert re.search(rf"\bdef {name}\(", (HERE / path).read_text())
