"""Splicing of encoded messages, so that a part which did not change is not encoded again.

Two rules of the protobuf encoding carry it: the concatenation of two encodings of a message type is the
encoding of the merged message, and a message field is its tag, its length and the encoding of the value.
"""

from __future__ import annotations

from betterproto2 import encode_varint

_LENGTH_DELIMITED = 2


def nested(field_number: int, encoded: bytes) -> bytes:
    """Encode a message field from the already encoded message."""
    return encode_varint(field_number << 3 | _LENGTH_DELIMITED) + encode_varint(len(encoded)) + encoded
