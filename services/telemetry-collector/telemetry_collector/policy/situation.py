"""What is recorded of a site so that its requests can be run again later. Pure."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from tokenfleet.contracts.fleet import EngineProfile, InstanceState
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.situation import InstanceGroup, Situation
from tokenfleet.fleet_view import FleetView

REPEAT_S = 60.0
"""An unchanged situation is said again after so many wall seconds, so that a reader need not look far back."""


def describe(
    fleet: FleetView,
    policy: Policy,
    tenants: Iterable[Tenant],
    *,
    site: str,
    time_scale: float,
    telemetry_interval_s: float | None,
    now_s: float,
    time_ns: int,
) -> Situation:
    """The situation now. An instance that is only silent for a moment still belongs to it; keys never do.

    Args:
        fleet: the instances.
        policy: in force.
        tenants: all of them.
        site: whose situation it is.
        time_scale: engine seconds per wall second.
        telemetry_interval_s: wall seconds between two readings of an instance, None if not known.
        now_s: monotonic wall seconds, as `fleet` counts them.
        time_ns: Unix time.
    """
    keyless = [msgspec.structs.replace(tenant, key_hashes=()) for tenant in tenants]
    return Situation(
        site=site,
        time_ns=time_ns,
        time_scale=time_scale,
        groups=_groups(fleet, now_s),
        policy=policy,
        tenants=tuple(
            tenant
            for tenant in sorted(keyless, key=lambda tenant: tenant.tenant)
            if tenant != Tenant(tenant=tenant.tenant)
        ),
        telemetry_interval_s=telemetry_interval_s,
    )


def _groups(fleet: FleetView, now_s: float) -> tuple[InstanceGroup, ...]:
    generations: dict[tuple[str, EngineProfile, int, bool, bool], dict[str, int]] = defaultdict(dict)
    for view in sorted(fleet.instances(), key=lambda view: (view.record.pool, view.record.instance)):
        if view.liveness(now_s) == "dead":
            continue
        one = view.record
        alike = (one.pool, one.profile, one.block_size_tokens, one.kv_events, one.draining)
        generations[alike][one.instance] = one.generation
    return tuple(
        InstanceGroup(
            pool=pool,
            profile=profile,
            block_size_tokens=block_size_tokens,
            kv_events=kv_events,
            draining=draining,
            generations=names,
        )
        for (pool, profile, block_size_tokens, kv_events, draining), names in generations.items()
    )


class SituationLog:
    """Decides when a situation is worth saying: when it changed and stayed so for two looks, and now and then.

    What lasts less than two looks is the collector's own trouble (a reconnection, a busy machine) more often than
    the fleet's.
    """

    def __init__(self) -> None:
        self._said: Situation | None = None
        self._said_s = 0.0
        self._seen: Situation | None = None

    def due(self, now: Situation, now_s: float) -> Situation | None:
        """What is to be said after a look at a situation: of a change, as it was when first seen."""
        seen, self._seen = self._seen, now
        if self._said is not None and _alike(now, self._said):
            return now if now_s - self._said_s >= REPEAT_S else None
        if seen is None or not _alike(now, seen):
            return None
        return seen

    def said(self, situation: Situation, now_s: float) -> None:
        """It was kept. What was not is due again."""
        self._said, self._said_s = situation, now_s


def _alike(situation: Situation, other: Situation) -> bool:
    """Whether only the time and what was measured differ."""
    same = {"time_ns": other.time_ns, "telemetry_interval_s": other.telemetry_interval_s}
    return msgspec.structs.replace(situation, **same) == other


class ReadingInterval:
    """How far apart an instance's readings are, on average over the last and the present `SPAN` readings."""

    SPAN = 1_000

    def __init__(self) -> None:
        self._last_ns: dict[str, int] = {}
        self._sum_s = self._count = 0.0

    def heard(self, state: InstanceState) -> None:
        """A reading arrived."""
        last_ns = self._last_ns.get(state.instance)
        self._last_ns[state.instance] = state.time_ns
        if last_ns is None or state.time_ns <= last_ns:
            return
        self._sum_s += (state.time_ns - last_ns) / 1e9
        self._count += 1.0
        if self._count >= 2 * self.SPAN:
            self._sum_s /= 2
            self._count /= 2

    def left(self, instance: str) -> None:
        """An instance is gone; how long it stays away is no interval."""
        self._last_ns.pop(instance, None)

    @property
    def mean_s(self) -> float | None:
        """Wall seconds to the millisecond; None if no instance was read twice."""
        return round(self._sum_s / self._count, 3) if self._count else None
