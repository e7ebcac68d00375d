"""Names with `{01..04}` in them stand for several names."""

from __future__ import annotations

import itertools
import math
import re

_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
MAX_NAMES = 1_000
"""Most names that one pattern may stand for."""


def expand(pattern: str) -> tuple[str, ...]:
    """All names a pattern stands for: `a-{08..10}` gives a-08, a-09, a-10; several ranges multiply.

    The width of the first number is kept by leading zeros. ValueError says what is wrong with the braces.
    """
    parts = _RANGE.split(pattern)
    literals, bounds = parts[::3], list(zip(parts[1::3], parts[2::3], strict=True))
    if any("{" in text or "}" in text for text in literals):
        raise ValueError("has braces that are not a range such as {01..04}")
    ranges = [_numbers(low, high) for low, high in bounds]
    if math.prod(len(numbers) for numbers in ranges) > MAX_NAMES:
        raise ValueError(f"stands for more than {MAX_NAMES} names")
    return tuple(_weave(literals, chosen) for chosen in itertools.product(*ranges))


def _numbers(low: str, high: str) -> list[str]:
    first, last = int(low), int(high)
    if last < first:
        raise ValueError(f"counts down from {low} to {high}")
    if last - first >= MAX_NAMES:
        raise ValueError(f"stands for more than {MAX_NAMES} names")
    return [str(number).zfill(len(low)) for number in range(first, last + 1)]


def _weave(literals: list[str], chosen: tuple[str, ...]) -> str:
    return "".join(itertools.chain.from_iterable(itertools.zip_longest(literals, chosen, fillvalue="")))
