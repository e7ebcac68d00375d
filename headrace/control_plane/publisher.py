"""From what is served and who is there to snapshots in the xDS server. The one owner of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.control_plane.served import Served
from headrace.control_plane.table import Limits, Tables
from headrace.policy import Policy
from signals.membership import Membership
from signals.replicas import ReplicaKey
from xds_server.server import XdsServer
from xds_server.snapshot import SnapshotError
from xds_server.translate import Translator


class Publisher:
    """Publishes every change of policy, members or shares to all front-ends. Used from one event loop."""

    def __init__(
        self,
        xds: XdsServer,
        membership: Membership,
        policy: Policy,
        *,
        on_problems: Callable[[str, tuple[str, ...]], None],
    ) -> None:
        """`on_problems(frontend, problems)`: why a snapshot was refused, so that the last good one stays.
        Told once per change, with nothing when it is good again."""
        self._xds = xds
        self._membership = membership
        self._translator = Translator()
        self._on_problems = on_problems
        self._problems: dict[str, tuple[str, ...]] = {}
        self._acked = asyncio.Condition()
        self._sequence: dict[str, int] = {}
        self._tables: Tables | None = None
        self.policy = policy
        self.served = Served()
        self.limits = Limits()
        self.members_version = -1
        """Version of the membership that the latest snapshots show."""
        xds.declare(policy.frontends)

    def publish(self) -> None:
        """Translate and publish for every front-end that something changed for; what did not change is
        neither encoded nor sent again."""
        members = self._membership.view()
        inputs = (self.policy, self.served, self.limits)
        if self._tables is None or any(a is not b for a, b in zip(self._tables.inputs, inputs, strict=True)):
            self._tables = Tables(*inputs)
            self._tables.look(members)
            affected = frozenset(self.policy.frontends)
        else:
            affected = self._tables.look(members) | self._problems.keys()
        for frontend in affected & self.policy.frontends.keys():
            self._publish(self._tables, frontend)
        self.members_version = members.version

    def _publish(self, tables: Tables, frontend: str) -> None:
        try:
            snapshot = self._translator.translate(tables.of(frontend), frontend)
            self._sequence[frontend] = self._xds.publish(frontend, snapshot)
        except SnapshotError as error:
            self._tell(frontend, error.problems)
        except Exception as error:  # a fault of ours must not end the loop: the last good one stays
            self._tell(frontend, (repr(error),))
        else:
            self._tell(frontend, ())

    def _tell(self, frontend: str, problems: tuple[str, ...]) -> None:
        if self._problems.get(frontend, ()) != problems:
            self._on_problems(frontend, problems)
        self._problems.pop(frontend, None)
        if problems:
            self._problems[frontend] = problems

    def adopt(self, policy: Policy) -> None:
        """Serve another policy from the next `publish` on."""
        for frontend in self.policy.frontends.keys() - policy.frontends.keys():
            self._translator.forget(frontend)
            self._sequence.pop(frontend, None)
            self._problems.pop(frontend, None)
        self.policy = policy
        self._xds.declare(policy.frontends)

    async def note_ack(self) -> None:
        """Wake those who wait in `drained`; call it after every acknowledgement and disconnection."""
        async with self._acked:
            self._acked.notify_all()

    async def drained(self, key: ReplicaKey) -> None:
        """Wait until every connected Envoy has acknowledged that the replica takes nothing new."""
        async with self._acked:
            await self._acked.wait_for(lambda: self._takes_nothing(key) and self._all_confirmed())

    def _takes_nothing(self, key: ReplicaKey) -> bool:
        """Whether the replica is not ready, and the snapshots already say so."""
        view = self._membership.view()
        replicas = view.engines.get(key.engine, ())
        ready = any(replica.key == key and replica.ready for replica in replicas)
        return not ready and self.members_version == view.version

    def _all_confirmed(self) -> bool:
        if self._problems:
            return False  # some Envoys still serve from a snapshot that knows nothing of it
        confirmed = ((self._xds.confirmed(name), wanted) for name, wanted in self._sequence.items())
        return all(found is None or found >= wanted for found, wanted in confirmed)
