"""Snapshots: the immutable, consistent set of resources that the Envoys of one front-end serve from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from xds_server.resource_types import BY_URL, CDS, EDS, LDS, RDS, RTDS, TYPES
from xds_server.resources import Reference, Resource

_EMPTY: Mapping[str, Resource] = MappingProxyType({})

Changes = Mapping[str, frozenset[str]]
"""type URL -> names that were added, changed or removed; types without changes are absent."""


class SnapshotError(ValueError):
    """A snapshot that must not be published; `problems` names each reason."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """type URL -> name -> resource. Never mutated: take care not to keep the mappings given to it."""

    types: Mapping[str, Mapping[str, Resource]]

    @classmethod
    def of(cls, resources: Iterable[Resource]) -> Self:
        """Collect resources. Raises SnapshotError when a name occurs twice with different content."""
        types: dict[str, dict[str, Resource]] = {}
        twice = []
        for resource in resources:
            kept = types.setdefault(resource.type_url, {}).setdefault(resource.name, resource)
            if kept is not resource and kept != resource:
                twice.append(f"{_label(resource)} occurs twice with different content")
        if twice:
            raise SnapshotError(twice)
        return cls(types)

    def of_type(self, type_url: str) -> Mapping[str, Resource]:
        """name -> resource of one type."""
        return self.types.get(type_url, _EMPTY)

    def with_resources(self, *resources: Resource) -> Self:
        """The same snapshot with some resources added or replaced; the other types are shared, not copied."""
        types = dict(self.types)
        for type_url in {resource.type_url for resource in resources}:
            changed = {resource.name: resource for resource in resources if resource.type_url == type_url}
            types[type_url] = {**self.of_type(type_url), **changed}
        return type(self)(types)

    def changes_from(self, old: Snapshot) -> Changes:
        """What differs from `old`, by content."""
        found = {}
        for type_ in TYPES:
            before, after = old.of_type(type_.url), self.of_type(type_.url)
            if before is after:
                continue
            names = {
                name
                for name, resource in after.items()
                if (known := before.get(name)) is not resource and known != resource
            }
            names.update(before.keys() - after.keys())
            if names:
                found[type_.url] = frozenset(names)
        return found

    def check(self, runtime_layers: Iterable[str] = ()) -> list[str]:
        """Every reason why an Envoy could not serve from this snapshot; empty when consistent.

        Content of each resource; references that lead nowhere; load assignments and route configurations
        that nothing uses; layers named in the bootstrap (`runtime_layers`) that are missing.
        """
        used: Set[Reference] = frozenset().union(*(resource.references for resource in self._all()))
        return [
            *self._content_problems(),
            *self._dangling(used),
            *self._unused(used),
            *(
                f"runtime layer {name!r} is missing: Envoy waits 15 s for it at start"
                for name in runtime_layers
                if name not in self.of_type(RTDS.url)
            ),
        ]

    def _all(self) -> Iterable[Resource]:
        return (resource for type_ in TYPES for resource in self.of_type(type_.url).values())

    def _content_problems(self) -> Iterable[str]:
        return (f"{_label(resource)}: {text}" for resource in self._all() for text in resource.problems)

    def _dangling(self, used: Set[Reference]) -> Iterable[str]:
        present = {type_.url: self.of_type(type_.url) for type_ in TYPES}
        missing = {reference for reference in used if reference.name not in present[reference.type_url]}
        for resource in self._all() if missing else ():
            for type_url, name in sorted(missing & resource.references):
                yield f"{_label(resource)} needs {BY_URL[type_url].name} {name!r}, which is missing"

    def _unused(self, used: Set[Reference]) -> Iterable[str]:
        for type_, user in ((EDS, CDS), (RDS, LDS)):
            for name in self.of_type(type_.url):
                if (type_.url, name) not in used:
                    yield f"{type_.name} {name!r} is used by no {user.name} resource"


EMPTY = Snapshot({})
"""What an unknown or not yet published front-end has; never served."""


def _label(resource: Resource) -> str:
    return f"{BY_URL[resource.type_url].name} {resource.name!r}"
