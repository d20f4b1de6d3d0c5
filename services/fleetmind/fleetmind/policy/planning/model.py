"""What a plan of replicas is made from, and what it says. Pure.

Work is how much of one instance's time is asked for: engine seconds per second. Two instances that are busy all the time do 2.0.
"""

import msgspec


class PoolNow(msgspec.Struct, frozen=True, kw_only=True):
    """One pool as it runs, and what its operator allows."""

    site: str
    pool: str
    """`model@version`."""
    model: str
    ready: int
    warming: int = 0
    """Begun, not ready yet."""
    warm_in_s: float = 0.0
    """Until all that are warming are ready."""
    bears: float = 0.8
    """Work that one instance bears within its objectives."""
    gpus: int = 1
    """Of one instance."""
    memory_gib: float = 0.0
    """Of one instance."""
    warm_up_s: float = 300.0
    """From the decision for one more instance until it is ready."""
    minimum: int = 0
    maximum: int | None = None
    """None: only the site's limits count. 0: it is to go, because its version is drained, say."""
    gpu_hour_price: float = 1.0

    @property
    def running(self) -> int:
        """What takes GPUs now."""
        return self.ready + self.warming


class SiteLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What all pools of a site may take together. None is unknown: then no more than what runs now."""

    site: str
    gpus: int | None = None
    memory_gib: float | None = None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Work that is forecast of one model at one entry, and may run at the same sites."""

    entry_site: str
    model: str
    work: float
    """What is planned for: the forecast's upper bound."""
    expected: float
    horizon_s: float
    sites: frozenset[str] | None = None
    """Where residency allows it; None: everywhere."""


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one pool should be."""

    site: str
    pool: str
    model: str
    running: int
    """Ready or warming now."""
    wanted: int
    """Replicas it should have, those that are warming included. What KEDA or Kubernetes is to be told."""
    prewarm: int
    """How many to begin now, so that they are ready when the forecast comes true."""
    work: float
    """What it is planned to serve."""
    bears: float
    """What the wanted replicas bear."""
    reason: str
    """One sentence."""


class Unserved(msgspec.Struct, frozen=True, kw_only=True):
    """Work that no replica which is wanted can bear."""

    entry_site: str
    model: str
    work: float
    reason: str


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """For all pools that were asked about, in their order."""

    pools: tuple[PoolPlan, ...]
    unserved: tuple[Unserved, ...] = ()
