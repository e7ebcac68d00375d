"""What may stay served under a policy, planned or not: residency fails closed, and nobody is left without."""

from __future__ import annotations

from collections.abc import Collection

from headrace.control_plane.served import Row, Served
from headrace.policy import Policy
from optimizer import SHED, Partition


def enforce(policy: Policy, served: Served, ready: Collection[str]) -> Served:
    """Take the intervals of engines that are no longer eligible away at once, give rows that nothing serves
    to their nearest eligible engine, and drop rows that the policy does not know.

    `ready`: engines with a ready replica, which go before others.
    """
    partitions: dict[Row, Partition] = {}
    reasons: dict[Row, str] = {}
    for frontend in policy.frontends:
        for key in policy.key_specs:
            row = (frontend, key)
            eligible = policy.eligible(*row).engines
            kept = allowed(served.partitions.get(row) or Partition(()), eligible)
            partitions[row] = kept if kept.entries else nearest(policy, row, ready)
            if not partitions[row].entries:
                reasons[row] = "no engine is eligible"
    if partitions == served.partitions and reasons == served.reasons:
        return served
    fallback = {row: engines for row, engines in served.fallback.items() if row in partitions}
    return Served(served.sequence + 1, partitions, fallback, reasons)


def allowed(old: Partition, eligible: Collection[str]) -> Partition:
    """The partition without engines that are not eligible, their intervals divided among the others; empty
    when nothing but refusals would be left."""
    kept = {name: share for name, share in old.shares.items() if name in eligible or name == SHED}
    if len(kept) == len(old.units):
        return old
    total = sum(share for name, share in kept.items() if name != SHED)
    if not total:
        return Partition(())
    room = 1.0 - kept.get(SHED, 0.0)
    return old.relabel({n: s if n == SHED else s * room / total for n, s in kept.items()})


def nearest(policy: Policy, row: Row, ready: Collection[str]) -> Partition:
    """All to the nearest eligible engine, one with a ready replica if there is any; empty when none is
    eligible."""
    eligible = policy.eligible(*row).engines
    if not eligible:
        return Partition(())
    first = min(eligible, key=lambda name: (name not in ready, policy.network_ms(row[0], name), name))
    return Partition.fresh({first: 1.0})
