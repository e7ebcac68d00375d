"""Error bodies in the shape that OpenAI clients parse."""

from __future__ import annotations

import json

JSON = "application/json"


def error_body(message: str, kind: str, code: str, param: str | None = None) -> str:
    """Return `{"error": {...}}` as compact JSON with sorted keys."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, sort_keys=True, separators=(",", ":"))
