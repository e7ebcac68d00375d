"""From what is served and who is there to snapshots in the xDS server. The one owner of both.

Front-ends are translated one after the other, and whatever else the loop has to do gets its turn in between:
a report, an acknowledgement, the next change. Each is translated from the newest of everything at its turn,
so nothing older is ever published after something newer, and a burst of changes costs a front-end one turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.control_plane.served import Served
from headrace.control_plane.table import Limits, Tables
from headrace.policy import Policy
from signals.membership import Membership
from signals.replicas import MembershipView, ReplicaKey
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
        self.wanted = asyncio.Event()
        """Set by `want`: there is something for `publish_in_turns` to do."""
        self._sequence: dict[str, int] = {}
        self._tables: Tables | None = None
        self._due: dict[str, None] = {}
        """Front-ends whose turn is to come, in order."""
        self._shown: dict[str, MembershipView] = {}
        """front-end -> the members that its snapshot shows."""
        self.policy = policy
        self.served = Served()
        self.limits = Limits()
        xds.declare(policy.frontends)

    def want(self) -> None:
        """Something changed: it is to be published."""
        self.wanted.set()

    async def publish_in_turns(self) -> None:
        """Publish for every front-end that something changed for, until nothing is wanted; what did not
        change is neither encoded nor sent again."""
        while self._step():  # noqa: ASYNC110 - it gives way, it does not wait
            await asyncio.sleep(0)
        await self.note_ack()

    def publish(self) -> None:
        """The same in one go, for when there is nobody else to have a turn."""
        self.want()
        while self._step():
            pass

    def _step(self) -> bool:
        """Publish for one front-end; returns whether there is more to do."""
        if self.wanted.is_set():
            self.wanted.clear()
            try:
                self._look()
            except Exception as error:  # a fault of ours must not end the loop: the last good ones stay
                for frontend in self.policy.frontends:
                    self._tell(frontend, (repr(error),))
        if self._tables and self._due:
            frontend = next(iter(self._due))
            del self._due[frontend]
            self._publish(self._tables, frontend)
        return bool(self._due) or self.wanted.is_set()

    def _look(self) -> None:
        """Take everything as it is now, and note for which front-ends it differs.

        Before the first shares there is nothing to tell: an empty answer would empty running Envoys."""
        if not self.served.sequence:
            return
        members = self._membership.view()
        inputs = (self.policy, self.served, self.limits)
        if self._tables is None or any(a is not b for a, b in zip(self._tables.inputs, inputs, strict=True)):
            tables = Tables(*inputs)
            tables.look(members)
            self._tables = tables
            affected = frozenset(self.policy.frontends)
        else:
            affected = self._tables.look(members) | self._problems.keys()
        # One that waits already keeps its place: a busy engine must not put others' turns off for ever.
        self._due |= dict.fromkeys(name for name in self.policy.frontends if name in affected)
        self._shown |= dict.fromkeys(self.policy.frontends.keys() - self._due.keys(), members)

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
            self._shown[frontend] = tables.members

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
            for known in (self._sequence, self._problems, self._due, self._shown):
                known.pop(frontend, None)
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
        if self._shown.keys() < self.policy.frontends.keys():
            return False
        shown = {id(view): view for view in self._shown.values()}
        return not any(_ready(view, key) for view in (self._membership.view(), *shown.values()))

    def _all_confirmed(self) -> bool:
        if self._problems:
            return False  # some Envoys still serve from a snapshot that knows nothing of it
        confirmed = ((self._xds.confirmed(name), wanted) for name, wanted in self._sequence.items())
        return all(found is None or found >= wanted for found, wanted in confirmed)


def _ready(members: MembershipView, key: ReplicaKey) -> bool:
    return any(replica.key == key and replica.ready for replica in members.engines.get(key.engine, ()))
