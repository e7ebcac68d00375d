"""State kept between planning rounds. It makes plans fast and never changes a plan.

Beside it: what a planning loop is in the midst of (`scores`, `unfinished`, `whole`), which does decide.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from optimizer.component import Component
from optimizer.layout import Layout, LayoutCache, Round

Row = tuple[str, str]
"""(front-end, key)"""

MOST = 512
"""Layouts and programs kept; beyond it all are dropped, as fleets that changed leave theirs behind."""


class Warm:
    """Layouts and living linear programs of the last round, by component.

    Owned by one planner; not to be shared between threads.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.layouts: LayoutCache = {}
        self.scores: dict[str, float] = {}
        """engine -> smoothed latency, ms, of the `feedback` policy."""
        self.unfinished = False
        """The last publication was cut short by a step limit; the next round goes on without a threshold."""
        self.whole: frozenset[Row] = frozenset()
        """Rows on the way to other engines: they go altogether, without the price of movement."""
        self._components: dict[tuple[object, ...], Component] = {}

    def tidy(self) -> None:
        """Forget everything when too much has piled up; the next round is a cold one."""
        if len(self.layouts) > MOST or len(self._components) > MOST:
            self.layouts.clear()
            self._components.clear()

    def component(self, layout: Layout) -> Component:
        """The linear program of a component, built anew when its layout changed."""
        key = (layout.rows, layout.engines, bool(layout.kappa.any()))
        known = self._components.get(key)
        if known is None or known.layout is not layout:
            known = self._components[key] = Component(layout, self.clock)
        return known

    def known(self, layout: Layout) -> Component | None:
        """The program of a component if there is one for this very layout."""
        component = self._components.get((layout.rows, layout.engines, bool(layout.kappa.any())))
        return component if component is not None and component.layout is layout else None

    def derived(self, layout: Layout, what: tuple[object, ...], make: Callable[[], Layout]) -> Layout:
        """A layout made from another one, kept as long as that one."""
        key = (*what, layout.rows, layout.engines)
        known = self.layouts.get(key)
        if known is None or known[0] is not layout:
            known = self.layouts[key] = (layout, make())
        return known[1]

    def without_kappa(self, round_: Round) -> Round:
        """The same round with no extra work for moved requests; its program is kept apart."""
        layout = round_.layout
        none = np.zeros(len(layout.rows))
        other = self.derived(layout, ("without kappa",), lambda: dataclasses.replace(layout, kappa=none))
        return dataclasses.replace(round_, layout=other)

    def forget(self, layout: Layout) -> None:
        """Drop the program of a component, after its solver failed."""
        self._components.pop((layout.rows, layout.engines, bool(layout.kappa.any())), None)
