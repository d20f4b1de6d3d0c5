"""SkyWalker: a balancer in each region, selective pushing to replicas and to other regions."""

from collections.abc import Mapping, Sequence

from lab.baselines.common import Routed
from lab.baselines.prefix_tree import HeldPrefixes
from lab.baselines.site_queues import QueueingSiteRouter
from lab.sim.api import Arrival
from tokenfleet.contracts.fleet import InstanceRecord

MATCH_THRESHOLD = 0.5
MAX_TREE_TOKENS = 2**24 // 4
"""2^24 characters, at four to a token."""
SWEEP_INTERVAL_S = 60.0


class SkyWalker(QueueingSiteRouter):
    """The longest match among replicas with nothing waiting, else the least busy; another region if none is free.

    Definition: SkyWalker (EuroSys 2026, arXiv 2505.24095). Each region queues first come, first served, and sends its
    head only to an *available* replica, one whose engine reported no waiting request at the last probe (100 ms). Among
    the available: if more than 0.5 of the prompt matches, the longest match in the region's prefix tree, else the fewest
    active requests. If no local replica is available: another region whose queue is empty and which has one, chosen by
    the same rule over regions, and there a replica by the same rule; a request pushed once is not pushed on. Trees
    are capped at 2^24 characters and swept every 60 s.

    Holes: ties of the longest match go to the fewest active requests, theirs are drawn. The imbalance guard (32, 1.0001)
    is optional there and off here. A push happens at once; the request's way takes the round trip all the same.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._replicas = HeldPrefixes()
        self._regions = HeldPrefixes()
        self._swept_s = 0.0

    def place(self, arrival: Arrival, usable: Sequence[str]) -> str | None:
        entry = arrival.spec.entry_site
        local: list[str] = []
        remote: dict[str, list[str]] = {}
        for name in usable:
            if not self.available(name):
                continue
            site = self.site(name)
            if site == entry:
                local.append(name)
            elif not self.queued(site):
                remote.setdefault(site, []).append(name)
        if not local and not remote:
            return None
        if not local:
            active = {site: self._active(site) for site in remote}
            local = remote[self._pick(arrival, self._regions, active)]
        return self._pick(arrival, self._replicas, {name: self.loads[name].requests for name in local})

    def _active(self, site: str) -> int:
        return sum(load.requests for load in self.loads.values() if load.record.site == site)

    def _pick(self, arrival: Arrival, tree: HeldPrefixes, active: Mapping[str, int]) -> str:
        """By prefix if enough of it matches anywhere among the candidates, else the least active of them."""
        matches = {name: blocks for name, blocks in tree.matches(arrival.blocks).items() if name in active}
        longest = max(matches.values(), default=0)
        if longest * arrival.spec.block_size_tokens > MATCH_THRESHOLD * arrival.spec.input_tokens:
            holders = [name for name in active if matches.get(name) == longest]
            return self.least(holders, active.__getitem__)
        return self.least(active, active.__getitem__)

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        self._replicas.hold(arrival.blocks, routed.instance)
        self._regions.hold(arrival.blocks, self.site(routed.instance))
        if routed.routed_s - self._swept_s >= SWEEP_INTERVAL_S:
            self._swept_s = routed.routed_s
            for name, load in self.loads.items():
                most = MAX_TREE_TOKENS // load.record.block_size_tokens
                self._replicas.evict(name, most)
                self._regions.evict(load.record.site, most)

    def appeared(self, record: InstanceRecord) -> None:
        self._replicas.add_holder(record.instance)
        self._regions.add_holder(record.site)

    def vanished(self, record: InstanceRecord) -> None:
        self._replicas.drop_holder(record.instance)
        if all(load.record.site != record.site for load in self.loads.values()):
            self._regions.drop_holder(record.site)
