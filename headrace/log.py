"""Logging: structlog JSON lines on stderr, one past-tense snake_case event a fact."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import structlog

Logger = structlog.typing.FilteringBoundLogger


def make_logger(stream: TextIO | None = None, **context: Any) -> Logger:
    """Return a logger that writes JSON lines to `stream` (stderr) with `context` on every line."""
    logger = structlog.wrap_logger(
        structlog.WriteLogger(stream if stream is not None else sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    bound: Logger = logger.bind(**context)
    return bound
