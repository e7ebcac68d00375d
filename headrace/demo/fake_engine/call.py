"""Reading OpenAI completion requests, as leniently as vLLM 0.32: what is not needed is not looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.demo.fake_engine.prefix_cache import count_tokens
from headrace.demo.fake_engine.refusal import INVALID, Refusal


@dataclass(frozen=True, slots=True)
class Call:
    """What a completion request asks for."""

    chat: bool
    model: str | None
    """None: whatever the engine serves."""
    prompt: str
    prompt_tokens: int
    max_tokens: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    session: str | None
    """Conversation key from the body, if it carries one."""

    def output_tokens(self, natural: int) -> int:
        """Return how many tokens the answer has, for a model that stops by itself after `natural`."""
        if self.max_tokens is None:
            return natural
        return self.max_tokens if self.ignore_eos else min(self.max_tokens, natural)

    def finish_reason(self, natural: int) -> str:
        """Return why the answer ends: at the caller's limit, or by itself."""
        limited = self.max_tokens is not None and self.output_tokens(natural) >= self.max_tokens
        return "length" if limited else "stop"


def parse(body: bytes, *, chat: bool) -> Call:
    """Read the body of a chat (or plain) completion; raises Refusal with status 400."""
    document = _document(body)
    if document.get("n") not in (None, 1):
        raise Refusal(400, "This engine gives one choice a request.", "n")
    prompt = _chat_text(document) if chat else _prompt_text(document)
    options = document.get("stream_options")
    options = options if isinstance(options, dict) else {}
    session = document.get("prompt_cache_key") or document.get("user")
    return Call(
        chat=chat,
        model=_model(document),
        prompt=prompt,
        prompt_tokens=count_tokens(prompt),
        max_tokens=_max_tokens(document),
        ignore_eos=bool(document.get("ignore_eos")),
        stream=bool(document.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        session=session if isinstance(session, str) else None,
    )


def _invalid(where: str, message: str) -> Refusal:
    return Refusal(400, f"1 validation error:\n  {where}: {message}", where, INVALID)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise _invalid("body", f"JSON decode error: {error}") from None
    if not isinstance(document, dict):
        raise _invalid("body", "Input should be a valid dictionary")
    return document


def _model(document: Mapping[str, Any]) -> str | None:
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise _invalid("body.model", "Input should be a valid string")
    return model


def _max_tokens(document: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = document.get(name)
        if value is None:
            continue
        if type(value) is not int:
            raise _invalid(f"body.{name}", "Input should be a valid integer")
        if value < 1:
            raise Refusal(400, f"{name} must be at least 1, got {value}.", name)
        return value
    return None


def _chat_text(document: Mapping[str, Any]) -> str:
    messages = document.get("messages")
    if not isinstance(messages, list):
        raise _invalid(
            "body.messages", "Field required" if messages is None else "Input should be a valid list"
        )
    if not messages:
        raise Refusal(400, "Cannot apply chat template to an empty conversation.")
    pieces = []
    for message in messages:
        if not isinstance(message, dict):
            raise _invalid("body.messages", "Input should be a valid dictionary")
        pieces.append(str(message.get("role", "")))
        pieces.append(_content_text(message.get("content")))
    return "\n".join(pieces)


def _content_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _invalid("body.messages.content", "Input should be a valid string or a list of parts")
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _prompt_text(document: Mapping[str, Any]) -> str:
    prompt = document.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        # Four characters, as many as a token counts for.
        return "".join(f"{token:04d}"[-4:] for token in prompt)
    if not isinstance(prompt, str):
        raise Refusal(
            400, "This engine takes one prompt a request: a string or a list of token ids.", "prompt"
        )
    return prompt
