"""Small constructors that every resource file needs."""

from __future__ import annotations

from typing import Any as AnyMessage

from envoy_data_plane.envoy.config.core.v3 import (
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.google.protobuf import Any


def pack(message: AnyMessage) -> Any:
    """Pack an extension's configuration."""
    return Any.pack(message)


def ads() -> ConfigSource:
    """Say that a resource comes by the same aggregated stream."""
    return ConfigSource(ads=AggregatedConfigSource(), resource_api_version=ApiVersion.V3)


def overwrite(name: str, value: str) -> HeaderValueOption:
    """Set a header whatever was there; an empty value sets nothing."""
    return HeaderValueOption(
        header=HeaderValue(key=name, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def exactly(value: str) -> StringMatcher:
    """Match one string."""
    return StringMatcher(exact=value)


def regex(pattern: str) -> StringMatcher:
    """Match a whole string by an RE2 pattern."""
    return StringMatcher(safe_regex=RegexMatcher(regex=pattern))
