"""Conversations for the load generator: request bodies whose turns share a growing prefix."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

_FILLER = "water over the wheel and down the channel, "
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What the generated requests look like."""

    model: str
    turn_tokens: int = 100
    """Prompt tokens that every turn adds, at four characters a token."""
    output_tokens: int = 8
    turns: int = 3
    """Mean turns of a conversation; uniform from 1 to twice that less 1."""
    stream_share: float = 0.75
    """Fraction of requests that ask for a stream."""
    open_conversations: int = 50
    """Conversations a front-end has at a time; every request is the next turn of a random one."""


@dataclass(slots=True)
class Conversation:
    """One session: a key and the messages so far."""

    key: str
    turns_left: int
    messages: list[dict[str, str]] = field(default_factory=list)


class Conversations:
    """The open conversations of one front-end."""

    def __init__(self, name: str, shape: RequestShape, rng: random.Random) -> None:
        """Session keys begin with `name`."""
        self._name = name
        self._shape = shape
        self._rng = rng
        self._opened = 0
        self._open = [self._new() for _ in range(shape.open_conversations)]

    def next_request(self) -> tuple[str, bool, bytes]:
        """Return session key, whether it streams, and the body of the next request."""
        index = self._rng.randrange(len(self._open))
        conversation = self._open[index]
        if not conversation.turns_left:
            conversation = self._open[index] = self._new()
        conversation.turns_left -= 1
        streamed = self._rng.random() < self._shape.stream_share
        return conversation.key, streamed, self._body(conversation, streamed)

    def _new(self) -> Conversation:
        self._opened += 1
        turns = self._rng.randint(1, max(1, 2 * self._shape.turns - 1))
        return Conversation(f"{self._name}-{self._opened}", turns)

    def _body(self, conversation: Conversation, streamed: bool) -> bytes:
        messages = conversation.messages
        if messages:
            messages.append({"role": "assistant", "content": "and so it turns"})
        messages.append({"role": "user", "content": self._turn_text(conversation)})
        document = {
            "model": self._shape.model,
            "messages": messages,
            "max_tokens": self._shape.output_tokens,
            "ignore_eos": True,
            "stream": streamed,
        }
        return json.dumps(document).encode()

    def _turn_text(self, conversation: Conversation) -> str:
        length = self._shape.turn_tokens * _CHARS_PER_TOKEN
        opening = f"{conversation.key}, {len(conversation.messages)}: "
        return (opening + _FILLER * (length // len(_FILLER) + 1))[:length]
