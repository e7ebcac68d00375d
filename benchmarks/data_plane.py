"""What a request costs in a front-end's Envoy: CPU per request, beside an Envoy that only forwards.

    PYTHONPATH=. .venv/bin/python benchmarks/data_plane.py [--requests 4000] [--json]

The floor is an Envoy with one route, one cluster and no filter but the router. The rows add what a front-end
has: the whole chain of filters, many intervals, many names, a large body. CPU is the process's own (user and
system), so the client and the replica beside it on the machine do not count. One run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.envoy_process import EnvoyProcess
from tests.envoy.harness import MODEL, ControlPlane, Pool
from tests.envoy.replica import Replica
from xds_server.routing import TOTAL_WEIGHT, RoutingTable

MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
FLOOR = """
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: public
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/{manager}
          stat_prefix: public
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: replica}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: replica
    load_assignment:
      cluster_name: replica
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}
"""


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def send(port: int, requests: int, body: bytes, connections: int = 8) -> None:
    """Send requests over kept connections, each with a session key of its own."""
    numbers = iter(range(requests))

    async def worker() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            head = f"x-session-id: s{number}\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                + head.encode()
                + body
            )
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            assert answer.startswith("HTTP/1.1 200"), answer
            length = next(line for line in answer.split("\r\n") if line.startswith("content-length"))
            await reader.readexactly(int(length.partition(":")[2]))
        writer.close()

    await asyncio.gather(*(worker() for _ in range(connections)))


async def cost_us(pid: int, port: int, requests: int, body: bytes) -> float:
    """CPU microseconds a request, after a warm-up."""
    await send(port, requests // 10, body)
    before = cpu_s(pid)
    await send(port, requests, body)
    return (cpu_s(pid) - before) / requests * 1e6


@dataclass(frozen=True)
class Floor:
    """Bootstrap of an Envoy that only forwards."""

    port: int

    def write(self, folder: Path) -> Path:
        """Write it into a folder; returns its path."""
        path = folder / "bootstrap.yaml"
        path.write_text(FLOOR.format(port=self.port, manager=MANAGER))
        return path


def tables(pool: Pool) -> dict[str, RoutingTable]:
    """Name what is measured."""
    plain = pool.table()
    width = TOTAL_WEIGHT // 1000
    many = [("home", width)] * 999 + [("home", TOTAL_WEIGHT - 999 * width)]
    adapters = tuple(f"lora/adapter.{number}" for number in range(10_000))
    named = replace(plain.models[0], adapters=adapters)
    return {
        "front-end": plain,
        "1,000 intervals": pool.table(pool.split(entries=tuple(many))),
        "10,000 names": replace(plain, models=(named, *plain.models[1:])),
    }


async def measure(requests: int) -> dict[str, float]:
    """Row -> microseconds of Envoy's CPU a request."""
    small = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * 1000}]}).encode()
    large = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * (1 << 20)}]}).encode()
    few = max(100, requests // 20)
    found: dict[str, float] = {}
    async with Replica("home-0", keep=False) as replica, ControlPlane() as control_plane:
        async with EnvoyProcess(Floor(replica.port)) as bare:
            port = (await bare.ready())["public"]
            found["only forwards, 1 KB"] = await cost_us(bare.pid, port, requests, small)
            found["only forwards, 1 MB"] = await cost_us(bare.pid, port, few, large)
        pool = Pool({"home": [replica]})
        control_plane.push(pool.table())
        envoy: EnvoyProcess = await control_plane.start_envoy("bench")
        for name, table in tables(pool).items():
            await control_plane.publish(table)
            found[f"{name}, 1 KB"] = await cost_us(envoy.pid, envoy.ports["public"], requests, small)
        found["front-end, 1 MB"] = await cost_us(envoy.pid, envoy.ports["public"], few, large)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.requests))
    if options.json:
        print(json.dumps(found))
        return
    for name, cost in found.items():
        base = found["only forwards, 1 MB" if name.endswith("MB") else "only forwards, 1 KB"]
        print(f"{name:24} {cost:9.1f} us   {cost / base:5.2f} x")


if __name__ == "__main__":
    main()
