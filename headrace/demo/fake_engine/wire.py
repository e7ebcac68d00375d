"""OpenAI's HTTP API as vLLM 0.32 speaks it: reading requests, writing answers, event streams and errors."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.demo.fake_engine.prefix_cache import count_tokens

DONE = b"data: [DONE]\n\n"
CORE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_TEXT = "the water turns a wheel and every wheel takes what its channel brings no more and no less"
_WORDS = tuple(_TEXT.split())
_ROLE = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
_ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class Refusal(Exception):
    """A request that gets an error answer instead of tokens."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """Return the JSON document that goes with the status."""
        error = {
            "message": self.message,
            "type": _ERROR_TYPES.get(self.status, "APIError"),
            "param": self.param,
            "code": self.status,
        }
        return json.dumps({"error": error}, separators=(",", ":")).encode()

    def events(self) -> bytes:
        """Return the end of a stream that fails after its headers: an error event, then [DONE]."""
        return b"data: " + self.body() + b"\n\n" + DONE


@dataclass(frozen=True, slots=True)
class Call:
    """What a completion request asks for."""

    chat: bool
    model: str
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
    try:
        document = json.loads(body)
    except ValueError as error:
        raise Refusal(400, f"Invalid JSON: {error}") from None
    if not isinstance(document, dict):
        raise Refusal(400, "The request body must be a JSON object.")
    if document.get("n") not in (None, 1):
        raise Refusal(400, "This engine gives one choice a request.", "n")
    prompt = _chat_text(document.get("messages")) if chat else _prompt_text(document.get("prompt"))
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


def _model(document: Mapping[str, Any]) -> str:
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise Refusal(400, "Field required: model must be a string.", "model")
    return model


def _max_tokens(document: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = document.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise Refusal(400, f"{name} must be at least 1, got {value!r}.", name)
        return value
    return None


def _chat_text(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "Field required: messages must be a non-empty list.", "messages")
    pieces = []
    for message in messages:
        if not isinstance(message, dict):
            raise Refusal(400, "Every message must be an object.", "messages")
        pieces.append(str(message.get("role", "")))
        pieces.append(_content_text(message.get("content")))
    return "\n".join(pieces)


def _content_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refusal(400, "Message content must be a string or a list of parts.", "messages")
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return "".join(f"{token:04d}"[-4:] for token in prompt)
    if not isinstance(prompt, str):
        raise Refusal(400, "prompt must be one string or one list of token ids.", "prompt")
    return prompt


class Answer:
    """Writes the answer to one call, token by token or whole."""

    def __init__(self, call: Call, request_id: str, created: int, natural: int, cached_tokens: int) -> None:
        """`created` in Unix seconds; `request_id` without its prefix; `natural` length in tokens."""
        self._call = call
        self._output_tokens = call.output_tokens(natural)
        self._finish_reason = call.finish_reason(natural)
        self._cached_tokens = cached_tokens
        self._offset = zlib.crc32(call.prompt.encode())
        kind = "chat.completion" if call.chat else "text_completion"
        self._envelope = {
            "id": f"{'chatcmpl' if call.chat else 'cmpl'}-{request_id}",
            "object": f"{kind}.chunk" if call.chat and call.stream else kind,
            "created": created,
            "model": call.model,
        }
        self._head = "data: " + _dumps(self._envelope)[:-1] + ',"choices":'

    def events(self, start: int, stop: int) -> bytes:
        """Return the events of tokens `start` (inclusive) to `stop`, the role event before the first."""
        pieces = []
        for index in range(start, stop):
            if index == 0 and self._call.chat:
                pieces.append(self._event(_ROLE, 0))
            pieces.append(self._event(self._choice(index), index + 1))
        return "".join(pieces).encode()

    def end(self) -> bytes:
        """Return what follows the last token: the usage event if it was asked for, then [DONE]."""
        if not self._call.include_usage:
            return DONE
        usage = _dumps(self._usage(self._output_tokens))
        return f'{self._head}[],"usage":{usage}}}\n\n'.encode() + DONE

    def whole(self) -> bytes:
        """Return the answer to a request that did not ask for a stream."""
        text = "".join(map(self._token, range(self._output_tokens)))
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._finish_reason}
        choice["stop_reason"] = None
        if self._call.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        document = self._envelope | {"choices": [choice], "usage": self._usage(self._output_tokens)}
        return _dumps(document).encode()

    def _token(self, index: int) -> str:
        word = _WORDS[(self._offset + index) % len(_WORDS)]
        return word if index == 0 else " " + word

    def _choice(self, index: int) -> str:
        # The words need no escaping, and this runs for every token.
        text = self._token(index)
        body = f'"delta":{{"content":"{text}"}}' if self._call.chat else f'"text":"{text}"'
        last = index + 1 == self._output_tokens
        end = f'"{self._finish_reason}","stop_reason":null' if last else "null"
        return f'{{"index":0,{body},"logprobs":null,"finish_reason":{end}}}'

    def _event(self, choice: str, produced: int) -> str:
        if not self._call.continuous_usage:
            return f"{self._head}[{choice}]}}\n\n"
        return f'{self._head}[{choice}],"usage":{_dumps(self._usage(produced))}}}\n\n'

    def _usage(self, produced: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self._call.prompt_tokens,
            "total_tokens": self._call.prompt_tokens + produced,
            "completion_tokens": produced,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }


def model_list(models: tuple[str, ...], created: int, max_model_len: int) -> bytes:
    """Return the body of `GET /v1/models`."""
    entries = [
        {
            "id": model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": models[0],
            "parent": None,
            "max_model_len": max_model_len,
        }
        for model in models
    ]
    return _dumps({"object": "list", "data": entries}).encode()


def _dumps(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))
