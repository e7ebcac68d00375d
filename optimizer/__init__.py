"""Planning for a fleet of inference engines: pure functions on frozen values.

`plan` turns a `Problem` into a `Plan`: which fraction of each (front-end, model/class) demand goes to which
engine, so that the mean end-to-end latency of all traffic is least and every engine stays within its
capacity. No I/O; time only through the `Warm` state's clock.
"""

from optimizer.correction import Correction, Learning, followed, ramped_replicas, with_exploration
from optimizer.errors import ProblemError
from optimizer.explain import Reason, ReplicaValue, explain, replica_value
from optimizer.partition import Partition
from optimizer.plan import Decision, EnginePlan, Outcome, Plan
from optimizer.planner import plan
from optimizer.policies import POLICIES
from optimizer.prices import engine_price_range
from optimizer.problem import SHED, UNITS, Engine, Key, Observed, Problem, Shares, Tuning
from optimizer.profile import Harmonic, Profile, Table
from optimizer.publish import decide
from optimizer.replan import Replan, patient, quiet_decision, replan
from optimizer.warm import Warm

__all__ = [
    "POLICIES",
    "SHED",
    "UNITS",
    "Correction",
    "Decision",
    "Engine",
    "EnginePlan",
    "Harmonic",
    "Key",
    "Learning",
    "Observed",
    "Outcome",
    "Partition",
    "Plan",
    "Problem",
    "ProblemError",
    "Profile",
    "Reason",
    "Replan",
    "ReplicaValue",
    "Shares",
    "Table",
    "Tuning",
    "Warm",
    "decide",
    "engine_price_range",
    "explain",
    "followed",
    "patient",
    "plan",
    "quiet_decision",
    "ramped_replicas",
    "replan",
    "replica_value",
    "with_exploration",
]
