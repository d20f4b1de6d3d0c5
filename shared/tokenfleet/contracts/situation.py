"""How a site stood at a moment: what is needed, beside its requests' own events, to run them again later.

The collector says it at every change and at least once a minute; the FLEET stream keeps it.
"""

import msgspec

from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.contracts.policy import Policy, Tenant


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Registered instances of a pool that differ in nothing but their names; their addresses are not recorded."""

    pool: str
    profile: EngineProfile
    block_size_tokens: int
    kv_events: bool = False
    draining: bool = False
    generations: dict[str, int]
    """By instance; a restarted engine has a new one."""


class Situation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which instances a site has, under which policy and for which tenants."""

    site: str
    time_ns: int
    time_scale: float
    """Engine seconds per wall second."""
    groups: tuple[InstanceGroup, ...]
    """Without those given up as dead."""
    policy: Policy
    tenants: tuple[Tenant, ...] = ()
    """Without their keys, and without those that have no setting of their own."""
    telemetry_interval_s: float | None = None
    """Between two readings of an instance, in wall seconds, as measured; None while that is not known."""
    schema: int = 1
