"""Load assignments. Union of Envoy's rules and grpc's (grpc/proposal A27, `unmarshal_eds`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from xds_server.inspection.reference import Reference
from xds_server.views import View

UINT32_MAX = 2**32 - 1
_DENOMINATORS = (100, 10_000, 1_000_000)


def references(view: View) -> Iterable[Reference]:
    """A load assignment needs nothing."""
    return ()


def problems(view: View) -> Iterator[str]:
    """What a client would refuse or silently drop."""
    yield from assignment_problems(view, names_allowed=False)


def assignment_problems(view: View, names_allowed: bool) -> Iterator[str]:
    """The same for an assignment inside a cluster, where DNS names may stand for addresses."""
    yield from _priorities(view)
    for index, locality in enumerate(view.endpoints):
        where = f"endpoints[{index}]"
        if not names_allowed and not locality.HasField("locality"):
            yield f"{where} has no locality: grpc refuses it"
        yield from _weights(where, locality)
        for number, endpoint in enumerate(locality.lb_endpoints):
            yield from _address(f"{where}.lb_endpoints[{number}]", endpoint, names_allowed)
    yield from _duplicates(view)
    yield from _drops(view)


def _priorities(view: View) -> Iterator[str]:
    found = {locality.priority for locality in view.endpoints}
    if found and found != set(range(len(found))):
        yield f"priorities are {sorted(found)}: they must be dense from 0 (envoy#44349)"
    same = Counter((locality.priority, _place(locality)) for locality in view.endpoints)
    for (priority, place), times in same.items():
        if times > 1:
            yield f"locality {place} occurs {times} times in priority {priority}: merge them"
    for priority in sorted(found):
        weighted = [x.load_balancing_weight.value for x in view.endpoints if x.priority == priority]
        if sum(weighted) > UINT32_MAX:
            yield f"locality weights of priority {priority} sum to {sum(weighted)}, above {UINT32_MAX}"


def _weights(where: str, locality: View) -> Iterator[str]:
    if locality.HasField("load_balancing_weight") and not locality.load_balancing_weight.value:
        yield f"{where} has weight 0: leave the locality out"
    weights = []
    for number, endpoint in enumerate(locality.lb_endpoints):
        told = endpoint.HasField("load_balancing_weight")
        weights.append(endpoint.load_balancing_weight.value if told else 1)
        if not weights[-1]:
            yield f"{where}.lb_endpoints[{number}] has weight 0: leave it out or set it to DRAINING"
    if sum(weights) > UINT32_MAX:
        yield f"{where}: endpoint weights sum to {sum(weights)}, above {UINT32_MAX}"


def _address(where: str, endpoint: View, names_allowed: bool) -> Iterator[str]:
    if not endpoint.endpoint.address.HasField("socket_address"):
        return
    address = endpoint.endpoint.address.socket_address
    if not 0 < address.port_value < 65536:
        yield f"{where} has port {address.port_value}"
    if not address.address or not (names_allowed or _is_ip(address.address)):
        yield f"{where} has address {address.address!r}, which is not an IP address"


def _duplicates(view: View) -> Iterator[str]:
    sockets = [
        endpoint.endpoint.address.socket_address
        for locality in view.endpoints
        for endpoint in locality.lb_endpoints
        if endpoint.endpoint.address.HasField("socket_address")
    ]
    times = Counter((socket.address, socket.port_value) for socket in sockets)
    for (address, port), count in times.items():
        if count > 1:
            yield f"address {address}:{port} occurs {count} times: Envoy keeps the first (envoy#23445)"


def _drops(view: View) -> Iterator[str]:
    drops = view.policy.drop_overloads
    if len(drops) > 1:
        yield f"{len(drops)} drop categories: Envoy takes one"
    for drop in drops:
        share = drop.drop_percentage
        if share.denominator >= len(_DENOMINATORS):
            yield f"drop category {drop.category!r} has the unknown denominator {share.denominator}"
        elif share.numerator > _DENOMINATORS[share.denominator]:
            yield f"drop category {drop.category!r} drops more than everything"
        if not drop.category:
            yield "a drop category has no name"


def _place(locality: View) -> str:
    place = locality.locality
    return "/".join((place.region, place.zone, place.sub_zone))


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
