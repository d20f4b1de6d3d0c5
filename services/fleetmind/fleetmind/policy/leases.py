"""Capacity of a site granted to other entries for a short time, so that no two of them spend the same headroom. Pure.

A site's book grants parts of its headroom, each to one holder; a holder spends only what it holds. Both sides count a lease's
time by their own clock: the book from when it granted, the holder from when it had asked, which was earlier. So a holder
has always stopped spending before the book takes the rest back, however long messages took and whatever the
clocks say. What a holder does not need it gives back earlier, with its next ask, so that what is idle goes round instead of
waiting for its time to end (docs/adr/0015-placement-across-sites.md). Work is in seconds of one instance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tokenfleet.contracts.sites import Lease, LeaseGrant

VALID_S = 3.0
"""Wall seconds that a lease is valid, counted by its holder."""
ASK_EVERY_S = 0.5
"""How often a holder asks for more."""
GIVEN_BACK_S = 1.0
"""A holder gives back what it has not spent for so long."""
CLOCK_RATE = 0.98
"""A holder counts by a clock that may be so much slower than the book's."""
IN_TRANSIT_S = 1.0
"""How long after a lease's end a request placed on it may arrive."""
SETTLED_S = 0.5
"""A request that arrived is part of what the site's summaries tell after this time."""
REMEMBERED_S = 5.0
"""A holder that has not asked for this long takes no part in the sharing."""
LEAST_WANTED_S = 2.0
"""Everybody who asks counts with this much, so that whoever suddenly needs some finds some."""


@dataclass(slots=True)
class _Granted:
    holder: str
    left_s: float
    until_s: float
    returned: bool = False


@dataclass(slots=True)
class LeaseBook:
    """What one pool has granted. A new book grants nothing until all leases of the one before it must be over.

    Args:
        started_s: when this book was begun.
    """

    started_s: float
    _granted: dict[str, _Granted] = field(default_factory=dict[str, _Granted])
    _arrived: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    _wanted: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    _count: int = 0

    def grant(
        self, holder: str, wanted_s: float, headroom_s: float, now_s: float
    ) -> tuple[str, float] | None:
        """`(lease, work)` for a holder that asks, or None while there is nothing for it.

        Args:
            holder: who asks.
            wanted_s: what it diverts here, in seconds of an instance per second.
            headroom_s: what the pool can take, as its last summary says, with its reserve taken off.
            now_s: monotonic wall seconds of this book.
        """
        self._wanted[holder] = (max(wanted_s, 0.0), now_s)
        if now_s - self.started_s < VALID_S / CLOCK_RATE + IN_TRANSIT_S:
            return None
        free_s = headroom_s - self.committed_s(now_s)
        held_s = sum(one.left_s for one in self._granted.values() if one.holder == holder)
        work_s = min(free_s, self._share(holder, now_s) * headroom_s - held_s)
        if work_s <= 0:
            return None
        self._count += 1
        # Of this book: what is said of a lease of the one before must not count here.
        lease_id = f"{holder}.{1e3 * self.started_s:.0f}.{self._count}"
        self._granted[lease_id] = _Granted(holder, work_s, now_s + VALID_S / CLOCK_RATE + IN_TRANSIT_S)
        return lease_id, work_s

    def spent(self, lease: Lease, now_s: float) -> bool:
        """A request placed on a lease arrived. False: the lease is not known (any more), or used up."""
        granted = self._granted.get(lease.lease_id)
        self._arrived.append((now_s, lease.work_s))
        if granted is None or now_s >= granted.until_s or lease.work_s > granted.left_s + 1e-9:
            return False
        granted.left_s -= lease.work_s
        return True

    def returned(self, lease: Lease) -> None:
        """A holder gave a lease back with what it had left; what it has spent of it may still be under way."""
        granted = self._granted.get(lease.lease_id)
        if granted is not None and not granted.returned:
            granted.left_s = max(0.0, granted.left_s - lease.work_s)
            granted.returned = True

    def committed_s(self, now_s: float) -> float:
        """Of the headroom in the last summary, what is not to be given away: leases not spent, and what arrived since."""
        for lease_id in [key for key, one in self._granted.items() if now_s >= one.until_s]:
            del self._granted[lease_id]
        self._arrived = [(when_s, work_s) for when_s, work_s in self._arrived if now_s - when_s < SETTLED_S]
        arrived_s = sum(work_s for _, work_s in self._arrived)
        return arrived_s + sum(one.left_s for one in self._granted.values())

    def _share(self, holder: str, now_s: float) -> float:
        """Of the headroom, what one holder may have: by what each wants."""
        self._wanted = {
            name: (wanted_s, asked_s)
            for name, (wanted_s, asked_s) in self._wanted.items()
            if now_s - asked_s < REMEMBERED_S
        }
        total_s = sum(LEAST_WANTED_S + wanted_s for wanted_s, _ in self._wanted.values())
        return (LEAST_WANTED_S + self._wanted[holder][0]) / total_s


@dataclass(slots=True)
class _Held:
    lease_id: str
    left_s: float
    until_s: float
    since_s: float


@dataclass(slots=True)
class Wallet:
    """The leases that one FleetMind replica holds, by site and pool."""

    _held: dict[tuple[str, str], list[_Held]] = field(default_factory=dict[tuple[str, str], list[_Held]])
    _asked: dict[tuple[str, str], dict[int, float]] = field(
        default_factory=dict[tuple[str, str], dict[int, float]]
    )
    _limit_s: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    _sequence: int = 0

    def ask(self, site: str, pool: str, now_s: float) -> int:
        """The number of an ask that is sent now."""
        self._sequence += 1
        asked = self._asked.setdefault((site, pool), {})
        asked[self._sequence] = now_s
        for number in [number for number, at_s in asked.items() if now_s - at_s > VALID_S]:
            del asked[number]
        return self._sequence

    def receive(self, grant: LeaseGrant, now_s: float) -> float | None:
        """A grant arrived. Returns how long its ask was under way; None when it answers no ask that still counts."""
        asked_s = self._asked.get((grant.site, grant.pool), {}).pop(grant.sequence, None)
        if asked_s is None:
            return None
        self._limit_s[grant.site, grant.pool] = grant.limit_s
        until_s = asked_s + min(grant.valid_s, VALID_S)
        if grant.work_s > 0 and now_s < until_s:
            held = self._held.setdefault((grant.site, grant.pool), [])
            held.append(_Held(grant.lease_id, grant.work_s, until_s, asked_s))
        return now_s - asked_s

    def give_back(self, site: str, pool: str, now_s: float) -> tuple[Lease, ...]:
        """What was not spent for a while; it is the holder's no more."""
        valid = self._valid(site, pool, now_s)
        back = [one for one in valid if now_s - one.since_s >= GIVEN_BACK_S]
        if back:
            self._held[site, pool] = [one for one in valid if now_s - one.since_s < GIVEN_BACK_S]
        return tuple(Lease(lease_id=one.lease_id, work_s=one.left_s) for one in back)

    def has(self, site: str, pool: str, work_s: float, now_s: float) -> bool:
        """Whether a request with so much work may be diverted there."""
        held_s = sum(one.left_s for one in self._valid(site, pool, now_s))
        return held_s >= self._needed_s(site, pool, work_s)

    def spend(self, site: str, pool: str, work_s: float, now_s: float) -> tuple[Lease, ...]:
        """Take capacity for a request, of the leases that end first. None of it where there is not enough in all."""
        if not self.has(site, pool, work_s, now_s):
            return ()
        needed_s = self._needed_s(site, pool, work_s)
        spent: list[Lease] = []
        for one in self._valid(site, pool, now_s):
            part_s = min(needed_s, one.left_s)
            if part_s <= 0:
                break
            one.left_s -= part_s
            needed_s -= part_s
            spent.append(Lease(lease_id=one.lease_id, work_s=part_s))
        return tuple(spent)

    def _needed_s(self, site: str, pool: str, work_s: float) -> float:
        """Of one instance, at most all that it may have before it."""
        return min(work_s, self._limit_s.get((site, pool), work_s))

    def _valid(self, site: str, pool: str, now_s: float) -> Sequence[_Held]:
        held = self._held.get((site, pool))
        if not held:
            return ()
        valid = [one for one in held if now_s < one.until_s and one.left_s > 0]
        self._held[site, pool] = valid
        return valid


def headroom_s(backlog_s: Iterable[float], limit_s: float, reserve_share: float) -> float:
    """What a pool's instances can take before each is `limit_s` busy, but for its reserve."""
    backlogs = list(backlog_s)
    free_s = sum(max(limit_s - one, 0.0) for one in backlogs)
    return max(0.0, free_s - reserve_share * limit_s * len(backlogs))
