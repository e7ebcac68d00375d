"""Publishing in turns: others get theirs, and nothing older comes after something newer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.control_plane.publisher import Publisher
from headrace.control_plane.served import Served
from headrace.policy import load
from optimizer import Partition
from signals.membership import Membership
from signals.replicas import Announcement, ReplicaKey, ReplicaState, Report
from tests.headrace.fleet.small import KEY, POLICY
from xds_server.resource_types import EDS, RDS
from xds_server.server import XdsServer

FRONTENDS = tuple(f"f{number}" for number in range(8))
REPLICA = ReplicaKey("west-gpu", "", "r1")
WEST, EAST = Partition.fresh({"west-gpu": 1.0}), Partition.fresh({"east-gpu": 1.0})


class World:
    """A publisher with two engines of one replica each, and everything that Envoys would be told."""

    def __init__(self, folder: Path) -> None:
        document = yaml.safe_load(POLICY)
        document["frontends"] = {name: {"region": "west"} for name in FRONTENDS}
        (folder / "policy.yaml").write_text(yaml.safe_dump(document))
        self.policy = load(folder / "policy.yaml")
        self.membership = Membership()
        self.xds = XdsServer(clock=time.monotonic, fleet="test")
        self.publisher = Publisher(self.xds, self.membership, self.policy, on_problems=self._problems)
        self.streams = {}
        self.problems: list[tuple[str, tuple[str, ...]]] = []
        for engine in ("west-gpu", "east-gpu"):
            hello = Announcement(ReplicaKey(engine, "", "r1"), 1, "10.0.0.1", 8000 + len(self.streams))
            report = Report(1, 60.0, ReplicaState.READY)
            self.streams[engine] = self.membership.join(hello, report, 0.0)
        self.serve(WEST)

    def _problems(self, frontend: str, problems: tuple[str, ...]) -> None:
        self.problems.append((frontend, problems))

    def serve(self, partition: Partition) -> None:
        rows = {(frontend, KEY): partition for frontend in FRONTENDS}
        self.publisher.served = Served(self.publisher.served.sequence + 1, rows)
        self.publisher.want()

    def drain(self) -> None:
        self.membership.apply(REPLICA, self.streams["west-gpu"], Report(2, 60.0, ReplicaState.DRAINING), 0.0)
        self.publisher.want()

    def told(self) -> list[tuple[str, str] | None]:
        """Routes and the first engine's endpoints of every front-end, None where nothing is told yet."""
        return [self._told(frontend) for frontend in FRONTENDS]

    def _told(self, frontend: str) -> tuple[str, str] | None:
        snapshot = self.xds.snapshot(frontend)
        if snapshot is None:
            return None
        (routes,) = snapshot.types[RDS.url].values()
        return routes.version, snapshot.types[EDS.url]["interactive/west-gpu"].version

    async def watched(self, meanwhile: dict[int, Callable[[], None]]) -> list[list[Any]]:
        """Publish in turns; returns what was told at each turn of another task, which does things
        `meanwhile`, by the number of its turn."""
        task, seen = asyncio.create_task(self.publisher.publish_in_turns()), []
        while not task.done():
            meanwhile.get(len(seen), lambda: None)()
            seen.append(self.told())
            await asyncio.sleep(0)
        await task
        return [*seen, self.told()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def histories(seen: list[list[Any]]) -> list[list[Any]]:
    """Front-end -> what it was told, one after the other."""
    found = []
    for column in zip(*seen, strict=True):
        history = [told for told in column if told is not None]
        found.append([told for i, told in enumerate(history) if i == 0 or told != history[i - 1]])
    return found


async def test_others_have_a_turn_between_two_front_ends(world: World):
    seen = await world.watched({})
    told = [sum(item is not None for item in turn) for turn in seen]
    assert set(told) == set(range(len(FRONTENDS) + 1))


async def test_what_members_do_meanwhile_is_told_at_each_turn_that_comes_after_and_never_taken_back(
    world: World,
):
    seen = await world.watched({4: world.drain})
    assert None not in seen[-1]
    assert len({endpoints for _, endpoints in seen[-1]}) == 1
    lengths = [len(history) for history in histories(seen)]
    assert set(lengths) == {1, 2}
    assert sorted(lengths, reverse=True) == lengths


async def test_newer_shares_take_the_place_of_those_still_being_published(world: World):
    await world.watched({})
    world.serve(EAST)
    seen = await world.watched({3: lambda: world.serve(WEST)})
    assert seen[-1] == seen[0]
    assert {len(history) for history in histories(seen)} == {1, 3}


async def test_a_front_end_that_waits_keeps_its_place_while_members_change_all_the_time(world: World):
    def flap() -> None:
        sequence[0] += 1
        state = ReplicaState.DRAINING if sequence[0] % 2 else ReplicaState.READY
        world.membership.apply(REPLICA, world.streams["west-gpu"], Report(sequence[0], 60.0, state), 0.0)
        world.publisher.want()

    sequence = [2]
    seen = await world.watched(dict.fromkeys(range(len(FRONTENDS) + 1), flap))
    assert None not in seen[len(FRONTENDS) + 1]


async def test_a_drained_replica_is_acknowledged_when_every_front_end_says_so(world: World):
    world.publisher.publish()
    waiting = asyncio.create_task(world.publisher.drained(REPLICA))
    done = []
    world.drain()
    seen = await world.watched({i: lambda: done.append(waiting.done()) for i in range(len(FRONTENDS))})
    await waiting
    assert not any(done)
    assert len({endpoints for _, endpoints in seen[-1]}) == 1


async def test_before_anything_is_published_nothing_is_drained(world: World):
    waiting = asyncio.create_task(world.publisher.drained(ReplicaKey("west-gpu", "", "unknown")))
    await asyncio.sleep(0)
    await world.publisher.note_ack()
    assert not waiting.done()
    await world.publisher.publish_in_turns()
    await waiting


async def test_shares_that_cannot_be_served_leave_what_is_told_and_the_next_ones_are_told(world: World):
    world.publisher.publish()
    before, rows = world.told(), world.publisher.served.partitions
    world.publisher.served = Served(2, dict.fromkeys(rows, "no partition"))  # type: ignore[arg-type]  # a fault
    seen = await world.watched({0: world.publisher.want})
    assert seen[-1] == before
    assert {frontend for frontend, problems in world.problems if problems} == set(FRONTENDS)
    world.serve(EAST)
    await world.publisher.publish_in_turns()
    assert [problems for _, problems in world.problems[-len(FRONTENDS) :]] == [()] * len(FRONTENDS)
    assert all(now != then for now, then in zip(world.told(), before, strict=True))
