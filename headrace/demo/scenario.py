"""What the demo runs: the example policy fitted to one machine, replicas and demand. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

DEMAND_RPS = MappingProxyType({"us-east": 90.0, "eu-west": 120.0, "ap-south": 40.0})
REPLICAS = MappingProxyType({"us-east-gpu": 5, "eu-west-gpu": 5, "ap-south-gpu": 4})


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet for one machine."""

    document: Mapping[str, Any]
    """The policy as plain values."""
    demand_rps: Mapping[str, float] = field(default_factory=lambda: DEMAND_RPS)
    """front-end -> requests/s to send."""
    replicas: Mapping[str, int] = field(default_factory=lambda: REPLICAS)
    """engine -> replicas to start."""
    rate_divisor: float = 1.0
    """All rates and capacities were divided by this."""

    @classmethod
    def talk(cls, *, rate_divisor: float = 1.0) -> Scenario:
        """Return the example policy: demand 90 / 120 / 40 against 100 / 100 / 80.

        Listeners get free ports on loopback, since three front-ends share this machine.
        """
        document = yaml.safe_load(files("headrace.demo").joinpath("policy.yaml").read_text())
        for listener in document["listeners"].values():
            listener.update(port=0, address="127.0.0.1")
        for name, profile in document["profiles"].items():
            document["profiles"][name] = slower(profile, rate_divisor)
        demand = {frontend: rps / rate_divisor for frontend, rps in DEMAND_RPS.items()}
        return cls(document, demand, REPLICAS, rate_divisor)

    @property
    def fleet(self) -> str:
        """Name of the fleet."""
        return str(self.document["fleet"])

    def engine(self, name: str) -> Mapping[str, Any]:
        """An engine's entry in the policy."""
        found: Mapping[str, Any] = self.document["engines"][name]
        return found

    def profile(self, engine: str) -> Mapping[str, Any]:
        """The profile of an engine's replicas."""
        found: Mapping[str, Any] = self.document["profiles"][self.engine(engine)["profile"]]
        return found

    def served_as(self, engine: str) -> str:
        """What clients write in the `model` field for an engine's model."""
        return str(self.document["models"][self.engine(engine)["model"]]["served_as"][0])

    def output_tokens(self) -> int:
        """Mean answer length of the (only) class."""
        return int(next(iter(self.document["classes"].values()))["output_tokens"])


def slower(profile: Mapping[str, Any], divisor: float) -> dict[str, Any]:
    """A parametric profile whose rates are divided: the same latency at the same utilisation."""
    scaled = copy.deepcopy(dict(profile))
    for name in ("capacity_rps", "lambda_max_rps"):
        scaled[name] = scaled[name] / divisor
    ttft = scaled["ttft_ms"]
    ttft.update(knee_rps=ttft.get("knee_rps", 0) / divisor, slope=ttft.get("slope", 0) * divisor)
    return scaled
