"""Logging: structlog JSON lines on stderr, one past-tense snake_case event a fact."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
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


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OURS = ("signals", "xds_server", "optimizer", "headrace")


class Forward(logging.Handler):
    """Writes what the standard library's loggers say as lines of ours: the events of our packages, and
    `library_logged` for everybody else's."""

    def __init__(self, log: Callable[[], Logger]) -> None:
        """`log()`: the logger to write with now."""
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        if record.name.split(".")[0] in _OURS:
            self._log().log(record.levelno, record.getMessage(), **fields)
        else:
            message = record.getMessage()
            self._log().log(record.levelno, "library_logged", logger=record.name, message=message, **fields)
