"""Between the policy file and the policy in force: refuse, hold or let through (design/policy.md, rules)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.control_plane.telemetry import Telemetry
from headrace.policy import Policy, PolicyError, watch
from headrace.policy.guards import Difference, Hold, differences
from headrace.problem import PlanningRules

_HASH_CHARS = 8


@dataclass(frozen=True, slots=True)
class Pending:
    """A valid edit that waits for `headrace policy accept`."""

    policy: Policy
    rules: PlanningRules
    reasons: tuple[str, ...]
    changes: tuple[Difference, ...]


class PolicyGate:
    """Owns what is known of the policy file: the last error, and the edit that is held."""

    def __init__(
        self,
        path: Path,
        *,
        in_force: Callable[[], Policy],
        check: Callable[[Policy], None],
        judge: Callable[[Policy, PlanningRules], Awaitable[Hold | None]],
        adopt: Callable[[Policy, PlanningRules], None],
        telemetry: Telemetry,
    ) -> None:
        """`check` raises ValueError for a policy that cannot be served with; `judge` says whether an edit
        must wait; `adopt` puts one in force."""
        self._path = path
        self._in_force = in_force
        self._check = check
        self._judge = judge
        self._adopt = adopt
        self._telemetry = telemetry
        self.error = ""
        """Why the file as it is now is not in force; empty when it is, or is held."""
        self.pending: Pending | None = None
        self._seen: Policy | PolicyError | None = None
        """What the file said when it was last judged."""

    @property
    def state(self) -> str:
        """What the policy file is now: `in_force`, `held` or `refused`."""
        return "refused" if self.error else "held" if self.pending else "in_force"

    async def follow(self, stop: asyncio.Event) -> None:
        """Take every edit of the file until `stop`."""
        async for result in watch(self._path, stop, self._seen or self._in_force()):
            await self.take(result)

    async def take(self, result: Policy | PolicyError) -> None:
        """Judge what the file says: refuse it, hold it or put it in force."""
        self._seen = result
        if isinstance(result, PolicyError):
            self._refuse(str(result))
        else:
            await self._consider(result)

    def accept(self, content_hash: str) -> None:
        """Put the held edit in force. KeyError when none with this beginning of a hash is held."""
        pending = self.pending
        if len(content_hash) < _HASH_CHARS:
            raise ValueError(f"hash: expected at least the first {_HASH_CHARS} characters")
        if pending is None or not pending.policy.content_hash.startswith(content_hash):
            raise KeyError(f"no edit with hash {content_hash} is held")
        self._telemetry.log.warning("policy_accepted", hash=content_hash, by="operator")
        self._let_through(pending.policy, pending.rules)

    async def _consider(self, policy: Policy) -> None:
        if policy.fleet != self._in_force().fleet:
            self._refuse(f"fleet is {policy.fleet!r}, served is {self._in_force().fleet!r}: needs a restart")
            return
        try:
            self._check(policy)
            rules = PlanningRules.of(policy)
            held = await self._judge(policy, rules)
        except ValueError as error:
            self._refuse(str(error))
            return
        except Exception as error:  # a fault of ours: the last good policy stays, and the loop goes on
            self._telemetry.log.exception("policy_judging_failed", error=repr(error))
            self._refuse(f"cannot be judged: {error!r}")
            return
        if held is None:
            self._let_through(policy, rules)
        else:
            self._hold(policy, rules, held)

    def _refuse(self, reason: str) -> None:
        self.error = reason
        self._telemetry.reloads.labels("refused").inc()
        self._telemetry.log.error("policy_refused", reason=reason)

    def _hold(self, policy: Policy, rules: PlanningRules, held: Hold) -> None:
        self.error = ""
        self.pending = Pending(policy, rules, held.reasons, differences(self._in_force(), policy))
        self._telemetry.reloads.labels("held").inc()
        self._telemetry.log.error("policy_held", hash=policy.content_hash[:12], reasons=list(held.reasons))

    def _let_through(self, policy: Policy, rules: PlanningRules) -> None:
        self.error, self.pending = "", None
        self._telemetry.reloads.labels("accepted").inc()
        self._adopt(policy, rules)
