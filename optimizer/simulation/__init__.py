"""A closed loop to compare policies: demand, engines, delays and faults, the same draw for every policy."""

from optimizer.simulation.metrics import Metrics, reversals, settled_at
from optimizer.simulation.run import Trace, simulate
from optimizer.simulation.scenario import Event, Retries, Scenario

__all__ = ["Event", "Metrics", "Retries", "Scenario", "Trace", "reversals", "settled_at", "simulate"]
