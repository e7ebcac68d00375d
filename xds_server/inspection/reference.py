"""References between resources."""

from __future__ import annotations

from typing import NamedTuple


class Reference(NamedTuple):
    """A resource that another one needs."""

    type_url: str
    name: str
