"""Names inside Envoy: clusters, stat prefixes and internal headers, and the way back from a stat to a key.

Envoy builds stat names from cluster names, and a dot there breaks the metric's name and labels, so a model
id is spelled with `[A-Za-z0-9_-]` only; every other character becomes `_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from xds_server.routing import Model

ROUTES = "requests"
"""Name of the one route configuration that every listener uses."""

RUNTIME_LAYER = "headrace"
"""Name of the RTDS layer."""

INTERNAL_PREFIX = "x-headrace-"
"""Every request header with this prefix is removed before anything else looks at a request."""

MODEL_HEADER = "x-headrace-model"
"""Internal: the `model` field of the body, or `NO_MODEL`."""

NO_MODEL = "-"
"""Value of `MODEL_HEADER` until a body has named a model; no model may be called so."""

STREAM_HEADER = "x-headrace-stream"
"""Internal: the `stream` field of the body."""

DEFAULT_CLASS_HEADER = "x-headrace-default-class"
"""Internal: the class of the listener's requests unless a trusted header says otherwise."""

TRUSTED_HEADER = "x-headrace-trusted"
"""Internal: present when the listener trusts class headers."""

BODY_HEADER_PREFIX = "x-headrace-body-"
"""Internal: session keys taken from body fields."""

FRONTEND_HEADER = "x-headrace-frontend"
"""On requests to engines: the front-end through which they came."""

ENGINE_OF_REPLICA = "%UPSTREAM_METADATA(headrace:engine)%"
ATTEMPT = "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"
REPLICA_ITSELF = "%UPSTREAM_METADATA(headrace:replica)%"
"""Formats of what EDS says about the replica that a request went to."""

ENGINE_HEADER = "x-headrace-engine"
"""On requests to engines and on answers: the engine that was chosen."""

REPLICA_HEADER = "x-headrace-replica"
SNAPSHOT_HEADER = "x-headrace-snapshot"
REASON_HEADER = "x-headrace-reason"
"""On answers: who answered, from which routes, and why a request was refused."""

ATTEMPT_HEADER = "x-envoy-attempt-count"
"""Which attempt a request is. From outside: somebody there tries again, and nobody else is to."""

BUFFER_FILTER = "envoy.filters.http.buffer"
DEMAND_FILTER = "envoy.filters.http.local_ratelimit"
HEADER_FILTER = "envoy.filters.http.header_mutation"
"""HTTP filters that routes configure."""

DEMAND_SUFFIX = ".http_local_rate_limit.enabled"
"""Last part of the name of a demand counter."""

_DEMAND = re.compile(
    r"demand\.(?P<model>[A-Za-z0-9_-]+)/(?P<class>[A-Za-z0-9_-]+)" + re.escape(DEMAND_SUFFIX)
)


def spelled(model: str) -> str:
    """Spell a model id with the characters that Envoy's stat names can carry."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", model)


def member(traffic_class: str, engine: str) -> str:
    """Name the cluster that holds the replicas of an engine for one class."""
    return f"{traffic_class}/{engine}"


def composite(model: str, traffic_class: str, engine: str) -> str:
    """Name the cluster that tries an engine, some more of its replicas, and then its fallback."""
    return f"{spelled(model)}/{traffic_class}/{engine}"


def shed(model: str, traffic_class: str) -> str:
    """Name the cluster that refuses what the plan sheds of one key."""
    return f"shed/{spelled(model)}/{traffic_class}"


def demand_prefix(model: str, traffic_class: str) -> str:
    """Stat prefix of the demand counter of one key."""
    return f"demand.{spelled(model)}/{traffic_class}"


def body_header(path: str) -> str:
    """Name the internal header that carries a body field (`metadata:session` for a nested one)."""
    return BODY_HEADER_PREFIX + re.sub(r"[^a-z0-9_-]", "-", path.lower())


def refuse_internal(header: str, purpose: str) -> None:
    """Raise ValueError when a policy's header is one that no client can send, since it is removed early."""
    if header.lower().startswith(INTERNAL_PREFIX):
        raise ValueError(f"{purpose} header {header!r}: names that begin with {INTERNAL_PREFIX} are internal")


def folded(name: str) -> str:
    """Lower the ASCII letters of a name, as Envoy does before it looks a virtual host up."""
    return name.encode().lower().decode()


def check_served(models: Iterable[Model]) -> None:
    """Raise ValueError for names in requests that Envoy cannot tell apart, or not from its own.

    Envoy looks names up as it does host names: without regard to case, `*` only at the end.
    """
    owners: dict[str, str] = {}
    for model in models:
        for name in {*model.served_as, *model.adapters}:
            if name in ("", "*", NO_MODEL) or "*" in name[:-1] or not name.isprintable():
                raise ValueError(f"model {model.name!r}: {name!r} cannot be a model's name in requests")
            if name.endswith("*") and name not in model.adapters:
                raise ValueError(f"model {model.name!r}: {name!r}: only adapters may end with *")
            if (other := owners.setdefault(folded(name), model.name)) != model.name:
                raise ValueError(
                    f"models {other!r} and {model.name!r} are both served as {name!r} (case does not count)"
                )


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The inverse table: model ids by their spelling inside Envoy."""

    by_spelling: Mapping[str, str]

    @classmethod
    def of(cls, models: Iterable[str]) -> ModelNames:
        """Build the table.

        Raises ValueError when two models have one spelling, or when one is spelled `shed`, which names the
        clusters of refused requests.
        """
        table: dict[str, str] = {}
        for model in sorted(models):
            spelling = spelled(model)
            if spelling == "shed":
                raise ValueError(f"model {model!r}: the name is taken by refused requests; rename the model")
            if (other := table.setdefault(spelling, model)) != model:
                raise ValueError(
                    f"models {other!r} and {model!r} are both spelled {spelling!r} inside Envoy; rename one"
                )
        return cls(MappingProxyType(table))

    def demand_key(self, stat: str) -> tuple[str, str] | None:
        """Return (model, class) of a demand counter, None for any other stat or an unknown model."""
        if not (match := _DEMAND.fullmatch(stat)):
            return None
        model = self.by_spelling.get(match["model"])
        return None if model is None else (model, match["class"])

    def composite_key(self, cluster: str) -> tuple[str, str, str] | None:
        """Return (model, class, engine) of a composite cluster's name, None for any other cluster."""
        parts = cluster.split("/")
        if len(parts) != 3 or parts[0] not in self.by_spelling:
            return None
        return self.by_spelling[parts[0]], parts[1], parts[2]
