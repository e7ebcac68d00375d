"""Writing answers: the fields of vLLM 0.32's chunks and documents, in its order."""

from __future__ import annotations

import json
import zlib
from typing import Any

from headrace.demo.fake_engine.call import Call
from headrace.demo.fake_engine.refusal import DONE

_TEXT = "the water turns a wheel and every wheel takes what its channel brings no more and no less"
_WORDS = tuple(_TEXT.split())
_ROLE = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
_FINGERPRINT = "headrace-fake-engine"


class Answer:
    """Writes the answer to one call, token by token or whole."""

    def __init__(
        self, call: Call, model: str, request_id: str, created: int, natural: int, cached_tokens: int
    ) -> None:
        """`created` in Unix seconds; `request_id` without its prefix; `natural` length in tokens."""
        self._call = call
        self._output_tokens = call.output_tokens(natural)
        self._finish_reason = call.finish_reason(natural)
        self._cached_tokens = cached_tokens
        self._offset = zlib.crc32(call.prompt.encode("utf-8", "replace"))
        kind = "chat.completion" if call.chat else "text_completion"
        self._envelope = {
            "id": f"{'chatcmpl' if call.chat else 'cmpl'}-{request_id}",
            "object": f"{kind}.chunk" if call.chat and call.stream else kind,
            "created": created,
            "model": model,
        }
        self._head = "data: " + _dumps(self._envelope)[:-1] + ',"choices":'

    def events(self, start: int, stop: int) -> bytes:
        """Return the events of tokens `start` (inclusive) to `stop`, the role event before the first."""
        pieces = []
        for index in range(start, stop):
            if index == 0 and self._call.chat:
                pieces.append(self._event(_ROLE, 0, ',"prompt_token_ids":null,"prompt_text":null'))
            pieces.append(self._event(self._choice(index), index + 1))
        return "".join(pieces).encode()

    def end(self) -> bytes:
        """Return what follows the last token: the usage event if it was asked for, then [DONE]."""
        if not self._call.include_usage:
            return DONE
        usage = self._usage(self._output_tokens)
        if self._cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached_tokens}
        return (
            f'{self._head}[],"usage":{_dumps(usage)},"system_fingerprint":"{_FINGERPRINT}"}}\n\n'.encode()
            + DONE
        )

    def whole(self) -> bytes:
        """Return the answer to a request that did not ask for a stream."""
        text = "".join(map(self._token, range(self._output_tokens)))
        end = {"logprobs": None, "finish_reason": self._finish_reason, "stop_reason": None, "token_ids": None}
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        said = {"message": message} if self._call.chat else {"text": text}
        details = {
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
            "completion_tokens_details": None,
        }
        document = self._envelope | {
            "choices": [{"index": 0, **said, **end}],
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": self._usage(self._output_tokens) | details,
        }
        return _dumps(document).encode()

    def _token(self, index: int) -> str:
        word = _WORDS[(self._offset + index) % len(_WORDS)]
        return word if index == 0 else " " + word

    def _choice(self, index: int) -> str:
        # The words need no escaping, and this runs for every token.
        text = self._token(index)
        last = index + 1 == self._output_tokens
        reason = f'"{self._finish_reason}"' if last else "null"
        if self._call.chat:
            stop = ',"stop_reason":null' if last else ""
            said = f'"delta":{{"content":"{text}"}}'
            return f'{{"index":0,{said},"logprobs":null,"finish_reason":{reason}{stop},"token_ids":null}}'
        return (
            f'{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{reason},"stop_reason":null,'
            '"prompt_token_ids":null,"token_ids":null}'
        )

    def _event(self, choice: str, produced: int, rest: str = "") -> str:
        usage = ""
        if self._call.continuous_usage:
            usage = f',"usage":{_dumps(self._usage(produced) | {"completion_tokens_details": None})}'
        return f"{self._head}[{choice}]{usage}{rest}}}\n\n"

    def _usage(self, produced: int) -> dict[str, Any]:
        prompt = self._call.prompt_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + produced, "completion_tokens": produced}


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
