"""Pydantic's errors in the policy's own words."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.policy.problems import Path, is_secret, shown
from headrace.policy.schema import Document, Shape
from headrace.policy.source import Source, is_faulty

_KINDS = {
    "string_type": "text (in quotes, if it is a name that looks like something else)",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a map",
    "mapping_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "finite_number": "a finite number",
    "int_from_float": "an integer",
}
_BOUNDS = {
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number of at most {le:g}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
}


def translate(error: ValidationError, source: Source) -> None:
    """Note every error of pydantic in `source`, with the place where it was written."""
    for detail in error.errors(include_url=False):
        if is_faulty(detail["input"]) or _follows(detail):
            continue
        path = tuple(part for part in detail["loc"] if not str(part).startswith("~") and part != "[key]")
        wrong, expected = _words(detail, path)
        source.complain(path, wrong, expected)


def _follows(detail: ErrorDetails) -> bool:
    """Whether the error only follows from others: a list too short once its faulty items are gone."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


def _words(detail: ErrorDetails, path: Path) -> tuple[str, str]:
    """What was wrong and what was expected."""
    kind, value, ctx = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "policy":
        return ctx["wrong"], ctx["expected"]
    if kind == "missing":
        return "is required but missing", "a value"
    if kind == "extra_forbidden":
        names = _fields(detail["loc"][:-1])
        return "unknown key" + did_you_mean(str(path[-1]), names), one_of(names)
    if kind == "literal_error":
        return f"is {_said(value, path)}", str(ctx["expected"]).replace("'", "")
    if kind in ("too_short", "too_long"):
        bound = f"at least {ctx['min_length']}" if kind == "too_short" else f"at most {ctx['max_length']}"
        count = len(value)
        return f"has {count} {'entry' if count == 1 else 'entries'}", bound
    if kind in _BOUNDS:
        return f"is {_said(value, path)}", _BOUNDS[kind].format(**ctx)
    expected = _KINDS.get(kind, detail["msg"])
    if kind in ("float_type", "int_type") and isinstance(value, str) and _is_number(value):
        expected += " (YAML reads this notation as text: write it out, without quotes)"
    return f"is {_said(value, path)}", expected


def _said(value: object, path: Path) -> str:
    """A value as its author would recognise it; only its kind where it may be a secret."""
    telling = value and isinstance(value, str | int | float) and not isinstance(value, bool)
    if not (is_secret(path) and telling):
        return shown(value)
    return ("text" if isinstance(value, str) else "a number") + " (not repeated here)"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def one_of(names: Iterable[str], limit: int = 12) -> str:
    """`one of a, b, c`, shortened."""
    known = sorted(names)
    text = ", ".join(known[:limit]) + (f", … ({len(known)} in all)" if len(known) > limit else "")
    return f"one of {text}" if known else "none: there are none"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """` (did you mean x?)` when something known is close."""
    close = difflib.get_close_matches(name, list(names)[:2_000], n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def _fields(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the schema knows at a location of pydantic's (tags of unions included)."""
    shape: Any = Document
    for part in loc:
        shape = _step(shape, part)
    shape = _plain(shape)
    if not (isinstance(shape, type) and issubclass(shape, Shape)):
        return []
    return [item.alias or name for name, item in shape.model_fields.items()]


def _step(shape: Any, part: str | int) -> Any:
    shape = _plain(shape)
    if isinstance(shape, type) and issubclass(shape, Shape):
        for name, item in shape.model_fields.items():
            if part in (name, item.alias):
                return item.annotation
    origin, args = typing.get_origin(shape), typing.get_args(shape)
    if origin in (typing.Union, types.UnionType):
        return next((arg for arg in args if f"Tag(tag={str(part)!r})" in str(arg)), shape)
    return args[1] if origin is Mapping else args[0] if origin is tuple else None


def _plain(shape: Any) -> Any:
    """Without `Annotated` and `| None`."""
    while True:
        args = typing.get_args(shape)
        if typing.get_origin(shape) is Annotated:
            shape = args[0]
        elif (
            typing.get_origin(shape) in (typing.Union, types.UnionType)
            and type(None) in args
            and len(args) == 2
        ):
            shape = next(arg for arg in args if arg is not type(None))
        else:
            return shape
