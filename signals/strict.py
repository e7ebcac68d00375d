"""Strict reading of messages.

betterproto2 takes what is on the wire without comparing it with the field's type, so a hostile message can
put a number where a message is expected. What is read here has the types that it says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import betterproto2

M = TypeVar("M", bound=betterproto2.Message)


def parse(kind: type[M], data: bytes) -> M:
    """A message of `kind` from its bytes. Raises ValueError when they are not one."""
    try:
        message = kind.parse(data)
    except Exception as error:  # whatever the parser makes of bytes from outside
        raise ValueError(f"not a {kind.__name__}: {type(error).__name__}") from error
    if (wrong := _wrong_field(message)) is not None:
        raise ValueError(f"not a {kind.__name__}: {wrong} is of another type")
    return message


def _wrong_field(message: betterproto2.Message) -> str | None:
    """Name of the first field whose value has not the field's type."""
    for name, fits in _fields(type(message)):
        if not fits(getattr(message, name)):
            return name
    return None


@cache
def _fields(kind: type[betterproto2.Message]) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    return tuple(
        (name, _fits(hint)) for name, hint in get_type_hints(kind).items() if not name.startswith("_")
    )


def _fits(hint: Any) -> Callable[[Any], bool]:
    """The test that a value is of a field's type."""
    if get_origin(hint) is UnionType:
        (inner,) = (_fits(part) for part in get_args(hint) if part is not NoneType)
        return lambda value: value is None or inner(value)
    if get_origin(hint) is list:
        inner = _fits(get_args(hint)[0])
        return lambda value: type(value) is list and all(map(inner, value))
    if issubclass(hint, betterproto2.Message):
        return lambda value: type(value) is hint and _wrong_field(value) is None
    return lambda value: type(value) is hint
