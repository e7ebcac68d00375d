"""Collections at moments of our own choosing lose nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from headrace.control_plane.collector import settle


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_survives_is_left_out_of_automatic_collections() -> None:
    settle()
    assert gc.get_freeze_count() > 0


def test_a_cycle_that_dies_later_goes_with_the_next_call() -> None:
    knot = Knot()
    settle()
    watched = weakref.ref(knot)
    del knot
    gc.collect()
    assert watched() is not None
    settle()
    assert watched() is None
