"""The wire format: generated code against the contract, and bytes that are no message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import signals
from signals import messages
from signals.identity import Refused
from signals.messages import Distribution, Hello, ReportMessage, Sample, State
from signals.readings import Signal, measured
from signals.report_stream import check, decode

PROTO = Path(signals.__path__[0]) / "proto/headrace/signals/v1/signals.proto"
MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (?:optional |repeated )?\w+ (\w+) = (\d+);", re.MULTILINE)


def test_the_generated_messages_are_those_of_the_proto():
    contract = {name: dict(FIELD.findall(body)) for name, body in MESSAGE.findall(PROTO.read_text())}
    assert len(contract) == 7
    for name, fields in contract.items():
        generated = getattr(messages, name)._betterproto.meta_by_field_name
        assert {field: str(meta.number) for field, meta in generated.items()} == fields, name


def test_absent_and_zero_are_different_on_the_wire():
    def sent(**values) -> Sample:
        return ReportMessage.parse(bytes(ReportMessage(sample=Sample(state=State.READY, **values)))).sample

    assert sent().running is None
    assert sent(running=0.0).running == 0.0
    assert sent(ttft_ms=Distribution(mean=0.0)).ttft_ms.mean == 0.0
    assert sent(ttft_ms=Distribution(mean=0.0)).ttft_ms.p50 is None


def test_an_unknown_field_and_an_unknown_state_do_not_break_older_readers():
    newer = (
        bytes(ReportMessage(sample=Sample(sequence=1, state=State.READY, valid_for_ms=1))) + b"\xf8\x06\x01"
    )
    assert check(decode(newer).sample, 0.0).sequence == 1
    with pytest.raises(Refused, match="state"):
        check(Sample(sequence=1, state=State(9), valid_for_ms=1), 0.0)


def read(data: bytes) -> str:
    """What becomes of bytes: the refusal's code, or "" for a message that can be used."""
    try:
        message = decode(data)
        if message.sample is not None:
            check(message.sample, 0.0)
    except Refused as refused:
        return refused.code
    return ""


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_a_refusal(data):
    assert read(data) in ("", "invalid", "too_large")


@given(st.binary(max_size=60), st.integers(0, 300))
def test_a_damaged_message_is_a_message_or_a_refusal(noise, where):
    good = bytes(
        ReportMessage(
            hello=Hello(fleet="prod", engine="us-h100", replica_id="r1", served_models=["a/b.c"]),
            sample=Sample(sequence=7, state=State.READY, valid_for_ms=5, ttft_ms=Distribution(mean=1.0)),
        )
    )
    assert read(good[:where] + noise + good[where + len(noise) :]) in ("", "invalid", "too_large")


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x07",  # sample as a number
        b"\x12\x02\x50\x01",  # running as a varint
        b"\x12\x03\x0a\x01a",  # sequence as a string
        b"\x12\x02\x68\x01",  # ttft_ms as a number
        b"\x0a\x02\x12\xff",  # a string that is not UTF-8, cut short
    ],
)
def test_a_field_of_another_type_is_a_refusal(data):
    assert read(data) == "invalid"


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True))
def test_every_value_that_is_taken_is_finite_and_not_negative(one, two):
    sample = Sample(running=one, kv_usage_ratio=two, ttft_ms=Distribution(mean=one, p99=two))
    values, invalid = measured(sample)
    assert all(0.0 <= value < 1e9 for value in values.values())
    assert values.get(Signal.KV_USAGE_RATIO, 0.0) <= 1.0
    assert set(values).isdisjoint(invalid)
    assert len(values) + len(invalid) == 4
