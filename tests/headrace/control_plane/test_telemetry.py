"""What log and counters say of the events of Envoys; what CSDS says: `tests/conformance/test_status.py`."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from headrace.control_plane.telemetry import Telemetry
from headrace.log import make_logger
from xds_server.events import Acked, ClientInfo, Connected, Disconnected, Event, InSync, Lagging, Nacked, Sent
from xds_server.identity import Admission, Rejection
from xds_server.protocol.wire import DeltaRequest, Error, Node
from xds_server.resource_types import RTDS
from xds_server.resources import empty_runtime_layer
from xds_server.server import XdsServer
from xds_server.snapshot import Snapshot

ENVOY = ClientInfo("envoy-1", "west", "7", "ipv4:127.0.0.1:1", "delta", "1.40.0")
WHO = {"node": "envoy-1", "frontend": "west"}


class Told:
    """A telemetry and what it has said."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.telemetry = Telemetry(make_logger(self._stream))

    def take(self, *events: Event) -> None:
        for event in events:
            self.telemetry.xds(event)

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """Lines of the log, without their time."""
        found = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        for line in found:
            del line["ts"]
        return [line for line in found if event in ("", line["event"])]

    def count(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"{name}_total", labels)


@pytest.fixture
def told() -> Told:
    return Told()


def nacked(message: str = "no such cluster", **changes: Any) -> Nacked:
    values: dict[str, Any] = {"stale": False, "repeated": False} | changes
    return Nacked(ENVOY, "rds", "v2", ("routes",), 3, message, **values)


def acked(recovered: bool = False, after_s: float = 0.3) -> Acked:
    return Acked(ENVOY, "rds", "v3", ("routes",), after_s, recovered)


def test_a_refusal_is_logged_with_its_reason_and_counted(told: Told):
    told.take(nacked())
    assert told.lines() == [
        {
            "event": "resource_nacked",
            "level": "error",
            "type": "rds",
            "reason": "no such cluster",
            "names": ["routes"],
            **WHO,
        }
    ]
    assert told.count("headrace_xds_nacks", type="rds") == 1.0


def test_a_repeated_refusal_is_counted_and_not_logged_again(told: Told):
    told.take(nacked(), *[nacked(repeated=True)] * 4)
    assert len(told.lines("resource_nacked")) == 1
    assert told.count("headrace_xds_nacks", type="rds") == 5.0


def test_another_reason_is_logged_again(told: Told):
    told.take(nacked(), nacked(repeated=True), nacked("another"))
    assert [line["reason"] for line in told.lines("resource_nacked")] == ["no such cluster", "another"]


def test_the_first_acknowledgement_after_refusals_is_logged_and_others_are_not(told: Told):
    told.take(acked(), nacked(), acked(recovered=True), acked())
    assert told.lines("resource_recovered") == [
        {"event": "resource_recovered", "level": "info", "type": "rds", **WHO}
    ]
    assert told.telemetry.registry.get_sample_value("headrace_xds_ack_seconds_count", {"type": "rds"}) == 3.0
    assert told.telemetry.registry.get_sample_value("headrace_xds_ack_seconds_sum", {"type": "rds"}) == (
        pytest.approx(0.9)
    )


def test_responses_are_counted_and_not_logged(told: Told):
    told.take(Sent(ENVOY, "cds", "v1", 3, 900))
    assert told.lines() == []
    assert told.count("headrace_xds_responses", type="cds") == 1.0


def test_what_happens_to_an_envoy_is_logged_with_who_it_is(told: Told):
    told.take(
        Connected(ENVOY, "Envoy 1.41 is untested"),
        Lagging(ENVOY, "eds", "v1", 15.04),
        InSync(ENVOY, 12),
        Disconnected(ENVOY, "cancelled"),
    )
    assert told.lines() == [
        {
            "event": "envoy_connected",
            "level": "info",
            "warning": "Envoy 1.41 is untested",
            "build": "1.40.0",
            **WHO,
        },
        {"event": "envoy_lagging", "level": "warning", "type": "eds", "for_s": 15.0, **WHO},
        {"event": "envoy_in_sync", "level": "info", "sequence": 12, **WHO},
        {"event": "envoy_disconnected", "level": "info", "reason": "cancelled", **WHO},
    ]


def server_of(told: Told) -> XdsServer:
    """A real server that tells this telemetry."""
    server = XdsServer(clock=lambda: 0.0, on_event=told.telemetry.xds, admission=Admission("prod"))
    server.declare({"west", "east"})
    server.publish("west", Snapshot.of([empty_runtime_layer("headrace")]))
    return server


def connect(server: XdsServer, node: Node | None) -> Any:
    return server.connect(
        node, "ipv4:127.0.0.1:1", delta=True, only=None, wake=lambda: None, end=lambda rejection: None
    )


@pytest.mark.parametrize(
    ("node", "reason", "text"),
    [
        (Node("envoy-1", "north", "prod"), "frontend", "node.cluster is 'north', which is not a front-end"),
        (Node("envoy-1", "west", "test"), "fleet", "node metadata 'fleet' is 'test', this control plane"),
        (Node("", "west", "prod"), "node", "the first request must carry node.id"),
    ],
    ids=["front-end", "fleet", "node"],
)
def test_an_envoy_that_is_not_admitted_is_a_clear_error_and_a_count(
    told: Told, node: Node, reason: str, text: str
):
    with pytest.raises(Rejection):
        connect(server_of(told), node)
    [line] = told.lines()
    assert (line["event"], line["level"]) == ("envoy_refused", "error")
    assert (line["node"], line["frontend"]) == (node.id, node.cluster)
    assert line["reason"].startswith(text)
    assert told.count("headrace_xds_refused", reason=reason) == 1.0


def test_the_error_for_an_unknown_front_end_names_those_there_are(told: Told):
    with pytest.raises(Rejection):
        connect(server_of(told), Node("envoy-1", "north", "prod"))
    assert told.lines()[0]["reason"].endswith("known: east, west")


def test_an_envoy_that_dials_before_the_first_snapshot_is_counted_and_no_error(told: Told):
    server = server_of(told)
    for _ in range(3):
        with pytest.raises(Rejection):
            connect(server, Node("envoy-1", "east", "prod"))
    assert told.lines() == []
    assert told.count("headrace_xds_refused", reason="not_ready") == 3.0


def test_a_refusal_reaches_log_and_status_once_however_often_the_client_repeats_it(told: Told):
    server = server_of(told)
    connection = connect(server, Node("envoy-1", "west", "prod"))
    server.receive(connection, DeltaRequest(type_url=RTDS.url, subscribe=("headrace",)))
    [response] = server.responses(connection)
    for _ in range(3):
        refusal = DeltaRequest(type_url=RTDS.url, nonce=response.nonce, error=Error(3, "bad layer"))
        server.receive(connection, refusal)
        assert list(server.responses(connection)) == []  # nor is it sent again
    [logged] = told.lines("resource_nacked")
    assert (logged["reason"], logged["names"]) == ("bad layer", ["headrace"])
    [status] = server.status()
    assert [type_.error for type_ in status.types] == [Error(3, "bad layer")]
