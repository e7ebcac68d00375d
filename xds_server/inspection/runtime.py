"""Runtime layers: the clusters whose breakers they set. A wrong name there has no effect, silently."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from xds_server.inspection.reference import Reference
from xds_server.resource_types import CDS
from xds_server.views import View

_BREAKER = re.compile(r"circuit_breakers\.(?P<cluster>.+)\.(default|high)\.[a-z_.]+")


def references(view: View) -> Iterator[Reference]:
    """The cluster of each key `circuit_breakers.<cluster>.<priority>...`."""
    for key in view.layer.fields:
        if match := _BREAKER.fullmatch(key):
            yield Reference(CDS.url, match["cluster"])


def problems(view: View) -> Iterable[str]:
    """Envoy refuses nothing here that these views show."""
    return ()
