"""The batch of one replica: continuous batching as a pure, clocked model (Yu et al., "Orca", OSDI 2022).

A request waits for a slot, has its prompt computed (prefill), then gets one token at the end of every decode
step, together with all other running sequences. The more of them, the longer the step.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from headrace.demo.fake_engine.profile import EngineProfile

_LOAD_WINDOW_S = 5.0


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the model. Times are seconds of the caller's clock, NaN while unknown."""

    prompt_tokens: int
    output_tokens: int
    prefill_s: float
    arrived_at: float = math.nan
    admitted_at: float = math.nan
    prefilled_at: float = math.nan
    """Nominal end of the prefill."""
    first_token_at: float = math.nan
    last_token_at: float = math.nan
    produced: int = 0

    @property
    def finished(self) -> bool:
        """Whether every token is out."""
        return self.produced >= self.output_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What happened at one step boundary."""

    at: float
    duration_s: float
    """Length of the decode step that ended here, 0 if none ran."""
    decoded: tuple[Sequence, ...]
    """Got a further token."""
    started: tuple[Sequence, ...]
    """Got their first token."""


class _Load:
    """Load of late in reference requests/s, from the decode steps: exponentially weighted over seconds.

    In a batch in equilibrium the mean of (tokens per second / tokens per request) is the arrival rate.
    """

    def __init__(self, steps_per_request: int) -> None:
        self._steps_per_request = steps_per_request
        self._updated_at = -math.inf
        self.rps = 0.0

    def decoded(self, tokens: int, at: float) -> None:
        """Note that `tokens` came out between the last call and `at`."""
        elapsed_s = at - self._updated_at
        if elapsed_s > 0:
            keep = math.exp(-elapsed_s / _LOAD_WINDOW_S)
            self.rps = keep * self.rps + (1.0 - keep) * tokens / self._steps_per_request / elapsed_s
            self._updated_at = at


class Batch:
    """Slots, first-come-first-served queue and step clock of a replica. The caller supplies the time."""

    def __init__(self, profile: EngineProfile, max_num_seqs: int | None = None) -> None:
        """Model a replica with this load curve and `max_num_seqs` slots (the profile's own if None)."""
        self.profile = profile
        self.max_num_seqs = max_num_seqs or profile.slots
        self.slow_factor = 1.0
        """Multiplies prefill and step times from the next one on."""
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._step_s = 0.0
        self._boundary = math.inf
        self._frozen_at: float | None = None
        self._load = _Load(max(1, profile.output_tokens - 1))

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def frozen(self) -> bool:
        """Whether the model stands still (a hung engine)."""
        return self._frozen_at is not None

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values the running sequences hold."""
        running = (*self._prefilling, *self._decoding)
        return sum(sequence.prompt_tokens + sequence.produced for sequence in running)

    def sequences(self) -> tuple[Sequence, ...]:
        """Return all sequences, the oldest state first."""
        return (*self._decoding, *self._prefilling, *self._waiting)

    def submit(self, sequence: Sequence, now: float) -> None:
        """Take a new request at `now`."""
        sequence.arrived_at = now
        self._waiting.append(sequence)
        self._admit(now)

    def abort(self, sequence: Sequence, now: float) -> None:
        """Forget a request at once, wherever it is; one that has left is no error."""
        for queue in (self._decoding, self._prefilling, self._waiting):
            if sequence in queue:
                queue.remove(sequence)
        if not self._decoding:
            self._boundary = math.inf
        self._admit(now)

    def freeze(self, now: float) -> None:
        """Stand still from `now` on: no token, no admission."""
        if self._frozen_at is None:
            self._frozen_at = now

    def thaw(self, now: float) -> None:
        """Go on where `freeze` stopped."""
        if self._frozen_at is None:
            return
        pause, self._frozen_at = now - self._frozen_at, None
        self._boundary += pause
        for sequence in self._prefilling:
            sequence.prefilled_at += pause
        self._admit(now)

    def next_event_at(self) -> float:
        """Return when `poll` has something to do; infinite if nothing will happen by itself."""
        if self.frozen:
            return math.inf
        if self._decoding:
            return self._boundary
        return min((sequence.prefilled_at for sequence in self._prefilling), default=math.inf)

    def poll(self, now: float) -> Step | None:
        """Carry out the earliest event that is due at `now`, None when there is none.

        Call until None: a caller that comes late gets the missed steps one by one, each at its own time.
        """
        at = self.next_event_at()
        if at > now:
            return None
        duration_s = self._step_s if self._decoding else 0.0
        self._load.decoded(len(self._decoding), at)
        decoded = tuple(self._decoding)
        for sequence in decoded:
            sequence.produced += 1
            sequence.last_token_at = at
        started = self._start(at)
        self._decoding = [sequence for sequence in (*decoded, *started) if not sequence.finished]
        self._step_s = self._step_length_s()
        self._boundary = at + self._step_s if self._decoding else math.inf
        self._admit(at)
        return Step(at, duration_s, decoded, started)

    def _start(self, at: float) -> tuple[Sequence, ...]:
        """Give the first token to prefills that end here.

        A prefill ends at the step boundary nearest to its nominal end, so that its mean is kept.
        """
        reach = at + self._step_s / 2 if self._decoding else at
        started = tuple(sequence for sequence in self._prefilling if sequence.prefilled_at <= reach)
        if started:
            self._prefilling = [sequence for sequence in self._prefilling if sequence.prefilled_at > reach]
        for sequence in started:
            sequence.produced = 1
            sequence.first_token_at = sequence.last_token_at = at
        return started

    def _admit(self, now: float) -> None:
        while self._waiting and not self.frozen and self.running < self.max_num_seqs:
            sequence = self._waiting.popleft()
            sequence.admitted_at = now
            load_s = self.profile.ttft_s(self._load.rps) - self.profile.ttft_s(0.0)
            sequence.prefilled_at = now + self.slow_factor * (sequence.prefill_s + load_s)
            self._prefilling.append(sequence)

    def _step_length_s(self) -> float:
        beside = max(0, len(self._decoding) - 1)
        return self.slow_factor * (self.profile.t0_ms / 1000 + self.profile.step_growth_s * beside)
