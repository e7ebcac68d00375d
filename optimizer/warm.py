"""State kept between planning rounds. It makes them fast; it never changes their result."""

from __future__ import annotations

import time
from collections.abc import Callable

from optimizer.component import Component
from optimizer.layout import Layout, LayoutCache


class Warm:
    """Layouts and living linear programs of the last round, by component.

    Owned by one planner; not to be shared between threads.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.layouts: LayoutCache = {}
        self._components: dict[tuple[object, ...], Component] = {}

    def component(self, layout: Layout) -> Component:
        """The linear program of a component, built anew when its layout changed."""
        key = (layout.rows, layout.engines)
        known = self._components.get(key)
        if known is None or known.layout is not layout:
            known = self._components[key] = Component(layout, self.clock)
        return known

    def forget(self, layout: Layout) -> None:
        """Drop the program of a component, after its solver failed."""
        self._components.pop((layout.rows, layout.engines), None)
