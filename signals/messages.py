"""The load-report messages under a short name (generated from `signals/proto`, see its README)."""

from signals.wire.headrace.signals.v1 import (
    Directive,
    Distribution,
    ErrorRate,
    Hello,
    Refusal,
    ReportMessage,
    Sample,
    State,
)

METHOD = "/headrace.signals.v1.LoadReports/Report"
"""Full gRPC method name of the report stream."""

PROTOCOL_MINOR = 1

__all__ = [
    "METHOD",
    "PROTOCOL_MINOR",
    "Directive",
    "Distribution",
    "ErrorRate",
    "Hello",
    "Refusal",
    "ReportMessage",
    "Sample",
    "State",
]
