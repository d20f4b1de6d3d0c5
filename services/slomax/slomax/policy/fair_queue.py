"""The queue of one class: weighted token-fair over tenants, least slack within each. Pure.

Every tenant has a counter of the tokens it was served, divided by its weight, and the one with the least is next
(virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). A tenant that comes
back after a pause begins level with the least of those waiting, so that idleness earns no credit. Within a tenant
the same rule divides its share among the users it names (`RequestSpec.fairness_id`).
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from slomax.policy.entry import Entry

PREFILL_TOKEN_COST, DECODE_TOKEN_COST = 1.0, 4.0
"""What a token counts for. On the reference profile a prefilled token takes 71 us of an engine, and a decoded one
about 300 us: an iteration of 30 ms shared by some hundred requests (../engine/profile.py)."""


class ServedTokens:
    """Counters of some flows (tenants, or users of one)."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}

    def of(self, flow: str) -> float:
        return self._served.get(flow, 0.0)

    def charge(self, flow: str, cost: float) -> None:
        self._served[flow] = self._served.get(flow, 0.0) + cost

    def lift(self, flow: str, active: set[str]) -> None:
        """A flow becomes active: it starts no lower than the least of those that are."""
        least = min((self.of(other) for other in active if other != flow), default=None)
        if least is not None and self.of(flow) < least:
            self._served[flow] = least

    def keep(self, flows: set[str]) -> None:
        """Forget all other flows."""
        self._served = {flow: served for flow, served in self._served.items() if flow in flows}


Key = tuple[float, float, str]
"""Latest start, arrival, request id: who has least time left is first."""


@dataclass(slots=True)
class _Tenant:
    users: dict[str, list[Key]] = field(default_factory=dict[str, list[Key]])
    """Waiting requests of each, in order."""
    served: ServedTokens = field(default_factory=ServedTokens)

    def waiting(self) -> int:
        return sum(map(len, self.users.values()))


class FairQueue:
    """Waiting requests of one class of one pool."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._served = ServedTokens()
        self._entries: dict[str, Entry] = {}
        self._keys: dict[str, Key] = {}
        self._expiries: list[tuple[float, str]] = []
        self.input_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, request_id: str) -> Entry:
        return self._entries[request_id]

    def add(self, entry: Entry) -> None:
        """Let it wait."""
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            tenant = self._tenants[entry.tenant] = _Tenant()
        user = entry.request.fairness_id or ""
        if not tenant.waiting():
            self._served.lift(entry.tenant, {name for name, one in self._tenants.items() if one.waiting()})
        if not tenant.users.get(user):
            tenant.served.lift(user, {name for name, waiting in tenant.users.items() if waiting})
        key = self._keys[entry.request_id] = entry.latest_start_s, entry.arrived_s, entry.request_id
        insort(tenant.users.setdefault(user, []), key)
        self._entries[entry.request_id] = entry
        heapq.heappush(self._expiries, (entry.expires_s, entry.request_id))
        self.input_tokens += entry.tokens

    def remove(self, request_id: str) -> Entry | None:
        """Take it out, charging nobody. None: it does not wait here."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            waiting = self._tenants[entry.tenant].users[entry.request.fairness_id or ""]
            del waiting[bisect_left(waiting, self._keys.pop(request_id))]
            self.input_tokens -= entry.tokens
        return entry

    def charge(self, entry: Entry, prefill_tokens: int, decode_tokens: int) -> None:
        """A request of this class was served so many tokens."""
        cost = (PREFILL_TOKEN_COST * prefill_tokens + DECODE_TOKEN_COST * decode_tokens) / entry.weight
        self._served.charge(entry.tenant, cost)
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            tenant = self._tenants[entry.tenant] = _Tenant()
        tenant.served.charge(entry.request.fairness_id or "", cost)

    def in_order(
        self,
        most: int | None = None,
        first_before_s: float = -math.inf,
        wanted: Callable[[Entry], bool] = lambda _: True,
    ) -> Iterator[Entry]:
        """The next ones to be served, at most so many, in the order in which they would be from now on.

        Entries may be removed meanwhile; what they would be charged for is anticipated.

        Args:
            most: how many.
            first_before_s: those that must begin by this moment come first, in the same order among themselves.
            wanted: the others are passed over.
        """
        taken: set[str] = set()
        for before_s in (math.inf,) if first_before_s == -math.inf else (first_before_s, math.inf):
            left = None if most is None else most - len(taken)
            others = (one for one in self._in_order(most, before_s, wanted) if one.request_id not in taken)
            for entry in islice(others, left):
                taken.add(entry.request_id)
                yield entry

    def _in_order(
        self, most: int | None, before_s: float, wanted: Callable[[Entry], bool]
    ) -> Iterator[Entry]:
        flows: dict[str, _Flows] = {}
        for name, tenant in self._tenants.items():
            keys: dict[str, list[Key]] = {}
            for user, waiting in tenant.users.items():
                soon = islice(waiting, bisect_left(waiting, (before_s, math.inf, "")))
                keys[user] = list(islice((key for key in soon if wanted(self._entries[key[2]])), most))
            flows[name] = _Flows(tenant.served, keys)
        heap = [(self._served.of(name), name) for name in flows]
        heapq.heapify(heap)
        taken = 0
        while heap and (most is None or taken < most):
            served, name = heapq.heappop(heap)
            entry = flows[name].take(self._entries)
            if entry is None:
                continue
            taken += 1
            yield entry
            heapq.heappush(heap, (served + PREFILL_TOKEN_COST * entry.tokens / entry.weight, name))

    def earliest_start_s(self) -> float:
        """The first of all latest starts; infinite where nobody waits."""
        return min(
            (
                waiting[0][0]
                for tenant in self._tenants.values()
                for waiting in tenant.users.values()
                if waiting
            ),
            default=float("inf"),
        )

    def pressing(self, before_s: float) -> list[Entry]:
        """Those that should have started before a time."""
        found: list[Entry] = []
        for tenant in self._tenants.values():
            for waiting in tenant.users.values():
                found += [
                    self._entries[key[2]] for key in waiting[: bisect_left(waiting, (before_s, 0.0, ""))]
                ]
        return found

    def expired(self, now_s: float) -> list[Entry]:
        """Those whose time in the queue is over."""
        found: list[Entry] = []
        while self._expiries and self._expiries[0][0] <= now_s:
            _, request_id = heapq.heappop(self._expiries)
            entry = self._entries.get(request_id)
            if entry is not None and entry.expires_s <= now_s:
                found.append(entry)
        return found

    def waiting_by_tenant(self) -> dict[str, int]:
        """How many requests of each tenant wait."""
        return {name: tenant.waiting() for name, tenant in self._tenants.items() if tenant.waiting()}

    def forget_idle(self, running: set[str]) -> None:
        """Drop the counters of tenants that have nothing waiting and nothing running."""
        active = {name for name, tenant in self._tenants.items() if tenant.waiting()} | running
        self._served.keep(active)
        self._tenants = {name: tenant for name, tenant in self._tenants.items() if name in active}


class _Flows:
    """One tenant's waiting requests, user after user."""

    def __init__(self, served: ServedTokens, keys: Mapping[str, Sequence[Key]]) -> None:
        self._keys = keys
        self._heap = [(served.of(user), user, 0) for user, waiting in keys.items() if waiting]
        heapq.heapify(self._heap)

    def take(self, entries: Mapping[str, Entry]) -> Entry | None:
        """The next one that still waits."""
        while self._heap:
            served, user, position = heapq.heappop(self._heap)
            keys = self._keys[user]
            entry = entries.get(keys[position][2])
            cost = PREFILL_TOKEN_COST * entry.tokens if entry is not None else 0.0
            if position + 1 < len(keys):
                heapq.heappush(self._heap, (served + cost, user, position + 1))
            if entry is not None:
                return entry
        return None
