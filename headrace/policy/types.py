"""The vocabulary of the policy's fields: names, numbers with bounds, addresses.

Every type says in its error what would have been right; `load` puts file, line and path before it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from headrace.policy.problems import shown

RESERVED = frozenset({"shed"})
"""Names that mean something else inside Envoy's configuration."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_HEADER = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SESSION_KEY = re.compile(r"header:[a-z0-9][a-z0-9-]{0,63}|body:[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_INTERNAL = "x-headrace-"


def is_name(text: str) -> bool:
    """Whether `text` may name an engine, front-end, region or class."""
    return bool(_NAME.fullmatch(text)) and text not in RESERVED


def fault(wrong: str, expected: str) -> PydanticCustomError:
    """An error whose text is "wrong; expected ..."."""
    return PydanticCustomError("policy", "{wrong}; {expected}", {"wrong": wrong, "expected": expected})


def _matching(pattern: re.Pattern[str], expected: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise fault(f"is {shown(value)}", expected)
        if value in RESERVED:
            raise fault(f"`{value}` is a reserved name", "another name")
        return value

    return check


def _header(value: str) -> str:
    if not _HEADER.fullmatch(value):
        raise fault(f"is {shown(value)}", "a header name in lower case: letters, digits and -")
    if value.startswith(_INTERNAL):
        raise fault(f"`{value}` is internal: Envoy removes every {_INTERNAL}* header", "another header")
    return value


def _session_key(value: str) -> str:
    if not _SESSION_KEY.fullmatch(value):
        raise fault(f"is {shown(value)}", "header:<lower-case name> or body:<field>")
    if value.startswith("header:"):
        _header(value.removeprefix("header:"))
    return value


def _adapter(value: str) -> str:
    if value in ("", "*", "-") or "*" in value[:-1] or not value.isprintable() or len(value) > 256:
        raise fault(f"is {shown(value)}", "a name, or a prefix that ends in *")
    return value


def _served(value: str) -> str:
    if value in ("", "-") or "*" in value or not value.isprintable() or len(value) > 256:
        raise fault(f"is {shown(value)}", "an exact model name of 1 to 256 printable characters")
    return value


def _cidr(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise fault(f"is {shown(value)} ({error})", "a network such as 10.16.0.0/12") from None


def split_address(value: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port"; ValueError when it is neither."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(value)
    if host.startswith("[") and host.endswith("]"):
        return str(ipaddress.IPv6Address(host[1:-1])), int(port)
    if not _HOST.fullmatch(host):
        raise ValueError(value)
    return host, int(port)


def _host_port(value: str) -> str:
    try:
        split_address(value)
    except ValueError:
        raise fault(f"is {shown(value)}", "host:port, with a port from 1 to 65535") from None
    return value


def _ip_port(value: str) -> str:
    try:
        address = ipaddress.ip_address(split_address(value)[0])
    except ValueError:
        raise fault(f"is {shown(value)}", "ip:port (for names use `dns`)") from None
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        raise fault(
            f"`{value}` cannot be a replica (link-local, multicast or unspecified)", "a unicast address"
        )
    return value


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise fault(f"is {shown(value)}", "an IP address to bind, such as 0.0.0.0") from None


def _digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):  # the value is not repeated: it may be the token itself
        raise fault("is not a SHA-256 digest", "64 hex digits: printf %s TOKEN | sha256sum")
    return value


def _sorted_set(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(_once(values)))


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise fault(f"names {value!r} twice", "each once")
        seen.add(value)
    return values


def number_or(word: str, low: float, high: float, *, whole: bool = False) -> PlainValidator:
    """A number in [low, high] (an integer when `whole`), or the given word."""
    kind = "an integer" if whole else "a number"

    def check(value: Any) -> Any:
        if value == word:
            return value
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise fault(f"is {shown(value)}", f"{kind} from {low:g} to {high:g}, or {word}")
        return value if whole else float(value)

    return PlainValidator(check)


Name = Annotated[str, AfterValidator(_matching(_NAME, "a name of 1 to 64 letters, digits, - and _"))]
"""Front-end, engine, region, class, jurisdiction, capability, listener, profile."""
ModelId = Annotated[str, AfterValidator(_matching(_MODEL, "a model id of letters, digits and . _ : / -"))]
HeaderName = Annotated[str, AfterValidator(_header)]
SessionKey = Annotated[str, AfterValidator(_session_key)]
ServedName = Annotated[str, AfterValidator(_served)]
AdapterName = Annotated[str, AfterValidator(_adapter)]
Cidr = Annotated[str, AfterValidator(_cidr)]
HostPort = Annotated[str, AfterValidator(_host_port)]
IpPort = Annotated[str, AfterValidator(_ip_port)]
IpAddress = Annotated[str, AfterValidator(_ip)]

Names = Annotated[tuple[Name, ...], AfterValidator(_sorted_set)]
"""A set of names: order means nothing, each once."""
SomeNames = Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_sorted_set)]
"""A set of names that cannot be empty (an empty allow-list is a mistake, or a trap)."""
Addresses = Annotated[tuple[IpPort, ...], Field(min_length=1), AfterValidator(_sorted_set)]
Cidrs = Annotated[tuple[Cidr, ...], AfterValidator(_sorted_set)]
Digests = Annotated[
    tuple[Annotated[str, AfterValidator(_digest)], ...], Field(min_length=1), AfterValidator(_sorted_set)
]
ServedNames = Annotated[tuple[ServedName, ...], AfterValidator(_once)]
AdapterNames = Annotated[tuple[AdapterName, ...], AfterValidator(_sorted_set)]
SessionKeys = Annotated[tuple[SessionKey, ...], AfterValidator(_once)]
OrderedNames = Annotated[tuple[Name, ...], AfterValidator(_once)]

Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
PositiveCount = Annotated[int, Field(ge=1, le=2**31 - 1)]
Port = Annotated[int, Field(ge=0, le=65535)]
MaxUtilization = Annotated[float | Literal["auto"], number_or("auto", 0.05, 1.0)]
