"""Log lines are JSON, whoever writes them."""

from __future__ import annotations

import io
import json
import logging

from headrace.log import Forward, make_logger


def lines(name: str, write) -> list[dict]:
    """What becomes of a record of one logger of the standard library."""
    stream = io.StringIO()
    log = make_logger(stream, fleet="prod", revision="7", snapshot=3)
    logger = logging.Logger(name)
    logger.addHandler(Forward(lambda: log))
    write(logger)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_line_has_the_time_the_level_and_what_is_bound():
    (line,) = lines(
        "signals.tls", lambda logger: logger.warning("certificate_not_reloaded", extra={"reason": "x"})
    )
    assert line.pop("ts").endswith("Z")
    assert line == {
        "event": "certificate_not_reloaded",
        "level": "warning",
        "reason": "x",
        "fleet": "prod",
        "revision": "7",
        "snapshot": 3,
    }


def test_an_exception_comes_with_its_traceback():
    def write(logger: logging.Logger) -> None:
        try:
            raise ValueError("broken")
        except ValueError:
            logger.exception("event_handler_failed")

    (line,) = lines("xds_server.server", write)
    assert line["event"] == "event_handler_failed"
    assert "ValueError: broken" in line["exception"]


def test_a_library_is_quoted_under_one_event():
    (line,) = lines("asyncio", lambda logger: logger.error("Task %s was destroyed", "t1"))
    assert (line["event"], line["logger"], line["message"]) == (
        "library_logged",
        "asyncio",
        "Task t1 was destroyed",
    )


def test_what_is_not_worth_a_warning_is_left_out():
    assert lines("grpc", lambda logger: logger.info("connected")) == []
