"""GORGO: across regions by time, round trip plus prefill."""

from collections.abc import Sequence

from lab.baselines.common import Routed
from lab.baselines.prefix_tree import HeldPrefixes
from lab.baselines.site_queues import QueueingSiteRouter
from lab.baselines.sites import SiteRouter
from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord


class _Peers:
    """What was routed to which peer, and what that makes a prompt cost there."""

    def __init__(self) -> None:
        self._tree = HeldPrefixes()

    def unmatched_tokens(self, arrival: Arrival) -> dict[str, int]:
        """Prompt tokens that a peer does not hold; peers that hold nothing are left out."""
        size = arrival.spec.block_size_tokens
        matches = self._tree.matches(arrival.blocks)
        return {name: arrival.spec.input_tokens - blocks * size for name, blocks in matches.items()}

    def routed(self, arrival: Arrival, record: InstanceRecord) -> None:
        self._tree.hold(arrival.blocks, record.instance)
        self._tree.evict(record.instance, record.profile.kv_capacity_tokens // record.block_size_tokens)

    def add(self, record: InstanceRecord) -> None:
        self._tree.add_holder(record.instance)

    def drop(self, record: InstanceRecord) -> None:
        self._tree.drop_holder(record.instance)


class Gorgo(QueueingSiteRouter):
    """Least round trip plus prefill of what does not match, among the instances with nothing waiting.

    Definition: GORGO (arXiv 2602.11688, 2026), first form: cost of a peer = round trip + prefill rate * unmatched prompt
    tokens, the least wins; without a match every peer costs its full prefill. The rate is the
    hardware profile's (0.094 ms a token on theirs).

    Holes: the cost knows no queue, so it is asked only about instances without a waiting request and a request waits
    at its entry site until there is one, as in SkyWalker, whose setting the paper compares with; ties are drawn. The
    matching prefix is an LRU of what was routed there, of the instance's KV capacity. Every instance is a peer.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._peers = _Peers()

    def place(self, arrival: Arrival, usable: Sequence[str]) -> str | None:
        free = [name for name in usable if self.available(name)]
        if not free:
            return None
        entry, tokens = arrival.spec.entry_site, arrival.spec.input_tokens
        unmatched = self._peers.unmatched_tokens(arrival)

        def cost_s(name: str) -> float:
            rate = self.loads[name].profile.prefill_s_per_token
            return self.round_trip_s(entry, name) + rate * unmatched.get(name, tokens)

        return self.least(free, cost_s)

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        self._peers.routed(arrival, self.loads[routed.instance].record)

    def appeared(self, record: InstanceRecord) -> None:
        self._peers.add(record)

    def vanished(self, record: InstanceRecord) -> None:
        self._peers.drop(record)


class Gorgo2(SiteRouter):
    """Stays unless an instance elsewhere is strictly cheaper than the local load.

    Definition: GORGO (arXiv 2602.11688, 2026), second form: local cost = prefill rate * (0.5 * tokens of running requests
    + tokens of queued requests + this request's tokens); a peer costs as in the first form, its queue not included;
    forward only when strictly cheaper.

    Holes: a site has several instances, so the local cost is that of its cheapest one and each instance elsewhere is a
    peer; running and queued are the requests with and without a first token that were routed there. A peer is
    asked only while nothing waits there: its queue is not in its cost and a decode's context is in the local
    one, so otherwise nearly everything is forwarded to wherever a prefix matches, and the queue there never ends (283 s
    median TTFT on the three-region scenario). Ties are drawn. A request that finds no such peer stays; at a site
    without usable instances it goes to the cheapest peer.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._peers = _Peers()

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        entry, tokens = arrival.spec.entry_site, arrival.spec.input_tokens
        unmatched = self._peers.unmatched_tokens(arrival)

        def cost_s(name: str) -> float:
            load = self.loads[name]
            rate = load.profile.prefill_s_per_token
            if load.record.site == entry:
                queued = sum(routed.input_tokens for routed in load.pending.values())
                return rate * (0.5 * load.decoding_tokens + queued + tokens)
            return self.round_trip_s(entry, name) + rate * unmatched.get(name, tokens)

        local = [name for name in usable if self.site(name) == entry]
        elsewhere = [name for name in usable if self.site(name) != entry]
        peers = [name for name in elsewhere if self.available(name)]
        if not local:
            return self.least(peers or elsewhere, cost_s)
        stay = self.least(local, cost_s)
        if not peers:
            return stay
        forward = self.least(peers, cost_s)
        return forward if cost_s(forward) < cost_s(stay) else stay

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        self._peers.routed(arrival, self.loads[routed.instance].record)

    def appeared(self, record: InstanceRecord) -> None:
        self._peers.add(record)

    def vanished(self, record: InstanceRecord) -> None:
        self._peers.drop(record)
