"""What goes wrong between sites in a simulation: links that are cut, news that is late, restarts, clocks that are off."""

from collections.abc import Mapping

import msgspec

from tokenfleet.contracts.policy import Fleet, Tenant


class Cut(msgspec.Struct, frozen=True):
    """Nothing gets from either site to the other."""

    site: str
    other: str
    from_s: float
    to_s: float


class Late(msgspec.Struct, frozen=True):
    """What a site says of itself arrives everywhere so much later."""

    site: str
    from_s: float
    to_s: float
    by_s: float


class Restart(msgspec.Struct, frozen=True):
    """A site's FleetMind begins anew, knowing nothing of other sites."""

    site: str
    at_s: float
    unknown_s: float
    """So long it does not know the tenants either,"""
    outdated_s: float
    """and then, for so long, only as they were before anything bound them."""


class Clock(msgspec.Struct, frozen=True):
    """A site's clock."""

    ahead_s: float = 0.0
    rate: float = 1.0


class Change(msgspec.Struct, frozen=True):
    """From then on another policy is in force."""

    at_s: float
    fleet: Fleet
    heard_after_s: Mapping[str, float] = {}
    """By site; one not named hears of it at once."""


RIGHT = Clock()


class SiteFaults(msgspec.Struct, frozen=True, kw_only=True):
    """All of one run. Virtual seconds."""

    cuts: tuple[Cut, ...] = ()
    late: tuple[Late, ...] = ()
    restarts: tuple[Restart, ...] = ()
    """In order of time."""
    clocks: Mapping[str, Clock] = {}
    changes: tuple[Change, ...] = ()
    """Likewise."""

    def cut(self, site: str, other: str, now_s: float) -> bool:
        """Whether nothing gets from one site to another."""
        ends = {site, other}
        return any(one.from_s <= now_s < one.to_s and ends == {one.site, one.other} for one in self.cuts)

    def late_s(self, site: str, now_s: float) -> float:
        """How late what a site says now will be."""
        return max(
            (one.by_s for one in self.late if one.site == site and one.from_s <= now_s < one.to_s),
            default=0.0,
        )

    def clock_s(self, site: str, now_s: float) -> float:
        """What a site's clock says."""
        clock = self.clocks.get(site, RIGHT)
        return clock.ahead_s + clock.rate * now_s

    def fleet(self, site: str, usual: Fleet, now_s: float) -> Fleet:
        """The policy that a site knows of."""
        known = usual
        for change in self.changes:
            if now_s >= change.at_s + change.heard_after_s.get(site, 0.0):
                known = change.fleet
        return known

    def tenant(self, site: str, tenant: Tenant, now_s: float) -> Tenant | None:
        """A tenant as a site's FleetMind knows it."""
        for one in self.restarts:
            since_s = now_s - one.at_s
            if one.site != site or since_s < 0:
                continue
            if since_s < one.unknown_s:
                return None
            if since_s < one.unknown_s + one.outdated_s:
                return msgspec.structs.replace(tenant, sites=None, regions=None)
        return tenant


NO_FAULTS = SiteFaults()
