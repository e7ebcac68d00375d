"""The shape of a policy file: one frozen model a section, every field with its unit and default.

What a single value may be is decided here; what must agree between places is decided in `checks`. The
page for operators is docs/policy.md. Models are validated from the plain values of `source.read`, where
lists are tuples and no value is null, so a field that is not written is a field that is not set.
"""

from headrace.policy.schema.base import Shape
from headrace.policy.schema.document import (
    MAX_ADAPTERS,
    MAX_CLASSES,
    MAX_ENGINES,
    MAX_FRONTENDS,
    MAX_MODELS,
    Defaults,
    Document,
)
from headrace.policy.schema.engines import Deny, Engine, EngineDefaults, Members
from headrace.policy.schema.places import Frontend, Listener, Network, Region
from headrace.policy.schema.planning import (
    Churn,
    Dgd,
    Feedback,
    Guards,
    Learning,
    LearningMode,
    Planning,
    PolicyName,
)
from headrace.policy.schema.profiles import (
    ParametricProfile,
    Profile,
    ProfileFields,
    Reference,
    TablePoint,
    TableProfile,
    Ttft,
)
from headrace.policy.schema.protection import (
    Breakers,
    EngineProtection,
    Hash,
    HealthCheck,
    OutlierDetection,
    Overload,
    Penalties,
    Protection,
    Ramp,
    Retries,
    Shedding,
    Timeouts,
)
from headrace.policy.schema.security import ReportsSecurity, Secret, SecretFile, Security, Tls, XdsSecurity
from headrace.policy.schema.traffic import ClassFields, Match, Model, ModelDefaults, Slo, SloMs, TrafficClass

__all__ = [
    "MAX_ADAPTERS",
    "MAX_CLASSES",
    "MAX_ENGINES",
    "MAX_FRONTENDS",
    "MAX_MODELS",
    "Breakers",
    "Churn",
    "ClassFields",
    "Defaults",
    "Deny",
    "Dgd",
    "Document",
    "Engine",
    "EngineDefaults",
    "EngineProtection",
    "Feedback",
    "Frontend",
    "Guards",
    "Hash",
    "HealthCheck",
    "Learning",
    "LearningMode",
    "Listener",
    "Match",
    "Members",
    "Model",
    "ModelDefaults",
    "Network",
    "OutlierDetection",
    "Overload",
    "ParametricProfile",
    "Penalties",
    "Planning",
    "PolicyName",
    "Profile",
    "ProfileFields",
    "Protection",
    "Ramp",
    "Reference",
    "Region",
    "ReportsSecurity",
    "Retries",
    "Secret",
    "SecretFile",
    "Security",
    "Shape",
    "Shedding",
    "Slo",
    "SloMs",
    "TablePoint",
    "TableProfile",
    "Timeouts",
    "Tls",
    "TrafficClass",
    "Ttft",
    "XdsSecurity",
]
