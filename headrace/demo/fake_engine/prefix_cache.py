"""The prefix cache of one replica: which conversations' prompts it still holds keys and values for."""

from __future__ import annotations

from collections import OrderedDict

BLOCK_TOKENS = 16
"""Tokens are cached in whole blocks, as vLLM does."""
CHARS_PER_TOKEN = 4


def count_tokens(text: str) -> int:
    """Return how many tokens a text counts for: four characters each, at least one."""
    return max(1, -(-len(text) // CHARS_PER_TOKEN))


class PrefixCache:
    """Least recently used conversations by session key, bounded in tokens."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._tokens = 0
        self._prompts: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    def lookup(self, session: str, prompt: str) -> int:
        """Return how many leading tokens of `prompt` are cached for `session`, and cache the prompt."""
        previous = self._prompts.pop(session, "")
        self._tokens += count_tokens(prompt) - (count_tokens(previous) if previous else 0)
        self._prompts[session] = prompt
        while self._tokens > self._capacity_tokens:
            _, evicted = self._prompts.popitem(last=False)
            self._tokens -= count_tokens(evicted)
        cached = _common_prefix(previous, prompt) // CHARS_PER_TOKEN
        # The last token is always computed: it gives the first output.
        return min(cached, count_tokens(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def clear(self) -> None:
        """Forget everything, as a restart does."""
        self._prompts.clear()
        self._tokens = 0


def _common_prefix(left: str, right: str) -> int:
    """Return the length of the common prefix, by bisection over slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
