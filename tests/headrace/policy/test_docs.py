"""docs/policy.md has every field with its default and the meaning that the schema states."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.policy import schema

PAGE = Path(__file__).parents[3] / "docs" / "policy.md"
SOURCES = Path(schema.__file__).parent.glob("*.py")


def meanings() -> Iterator[tuple[str, str, str]]:
    """Class, field and docstring of every field that is written in the schema."""
    for file in SOURCES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                for item, after in zip(node.body, [*node.body[1:], None], strict=True):
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        said = after.value.value if is_docstring(after) else ""
                        yield node.name, item.target.id, " ".join(said.split())


def is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def default(field) -> str:
    """A default as the page writes it."""
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if isinstance(value, schema.Members):
        return "`reported`"
    if isinstance(value, schema.Shape):
        return "below"
    if value is None or value in ((), {}, ""):
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`[{', '.join(map(str, value))}]`" if isinstance(value, tuple) else f"`{value}`"


ROWS = {
    (name, default_, meaning)
    for name, default_, meaning in re.findall(
        r"^\| `(\w+)` \| .*? \| ([^|]+) \| (.+) \|$", PAGE.read_text(), re.M
    )
}
HIDDEN = {("Members", "reported")}  # written as a word, described in the text


@pytest.mark.parametrize(("owner", "name", "meaning"), sorted(meanings()))
def test_field(owner, name, meaning):
    assert meaning, "the schema does not say what the field means"
    field = getattr(schema, owner).model_fields.get(name)
    if field is None or (owner, name) in HIDDEN or owner in ("Defaults", "Security", "SecretFile"):
        return
    assert (field.alias or name, default(field), meaning) in ROWS
