"""The one error of this package: an input that cannot be planned with, and which field is to blame."""

from __future__ import annotations

import math


class ProblemError(ValueError):
    """An invalid input. `field` is the path of the value, the text says what would be right."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def check_number(
    field: str,
    value: float,
    *,
    low: float = 0.0,
    high: float = math.inf,
    above: bool = False,
) -> float:
    """`value` as a float inside [low, high] ((low, high] with `above`), finite unless `high` is infinite.

    Raises:
        ProblemError: not a number, NaN, infinite or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProblemError(field, f"{value!r} is not a number")
    if not math.isfinite(value) or value < low or value > high or (above and value == low):
        bracket = "(" if above else "["
        end = "inf)" if math.isinf(high) else f"{high:g}]"
        raise ProblemError(field, f"{value!r}; expected a finite number in {bracket}{low:g}, {end}")
    return float(value)
