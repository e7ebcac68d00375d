"""All drills by name, in the order in which they are run."""

from __future__ import annotations

from types import MappingProxyType

from headrace.drill import control, demand, losses, retries, sessions, silence, slowness
from headrace.drill.drill import Drill

DRILLS = MappingProxyType(
    {
        drill.name: drill
        for module in (losses, slowness, silence, control, demand, retries, sessions)
        for drill in module.DRILLS
    }
)


def chosen(names: tuple[str, ...]) -> list[Drill]:
    """The drills of these names, all of them when none is named. KeyError says what there is."""
    if unknown := [name for name in names if name not in DRILLS]:
        raise KeyError(f"no drill {unknown[0]!r}, expected one of {', '.join(DRILLS)}")
    return [DRILLS[name] for name in names or DRILLS]
