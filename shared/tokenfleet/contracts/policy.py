"""Live configuration: the policy and the tenants, kept in KV buckets, watched by the services."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

CLASSES = ("interactive", "long_context", "batch")
"""The classes requests are sorted into unasked. A request may also name a class that the policy has objectives for."""

Routing = Literal["predicted", "least_requests", "round_robin"]
Tier = Literal["priority", "default", "flex"]
WhenLate = Literal["refuse", "spare", "degrade", "wait"]
"""What becomes of a request that is predicted to miss its objective: refused early; served late where few
come too late, and refused where many do; moved to the batch class; or queued for as long as it takes."""

OTHER_POOLS = "*"
"""The key of the price of a GPU-hour in every pool that has none of its own."""


class ClassObjective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The promise of a class. TTFT grows in proportion for inputs above `ttft_input_tokens`."""

    ttft_s: Positive | None = None
    ttft_input_tokens: Positive = 16_000
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None
    timeout_s: Positive | None = None
    """After this nobody waits for the answer any more; None: the policy's `request_timeout_s`."""
    percentile: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95
    """The share of admitted requests that should meet it: what feedback steers for."""


class ClassShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A class's share of a pool's time: the floor is guaranteed while it has requests, the ceiling holds while
    others have."""

    floor: Share = 0.0
    ceiling: Share = 1.0


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds of one class's queue of one pool."""

    requests: Annotated[int, msgspec.Meta(gt=0)] = 5_000
    input_tokens: Annotated[int, msgspec.Meta(gt=0)] = 100_000_000
    wait_s: Positive = 60.0
    """For interactive classes; batch waits for its deadline."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How requests that name no version are shared out among the versions of a model."""

    weights: dict[str, Annotated[float, msgspec.Meta(ge=0)]]
    """By version; one with 0, or not named, is left to requests pinned to it."""
    drained: tuple[str, ...] = ()
    """Versions that take nothing new, not even what is pinned to them."""
    warm_up_s: NotNegative = 60.0
    """A version that has just appeared works up to its weight in this time."""
    roll_back: bool = True
    """Stop using a version, until its weight is changed, when far more of its requests fail than of the others'."""


class PoolScaling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many replicas a pool may have, and what one takes."""

    min: Count = 0
    max: Count | None = None
    """None: as many as its site has room for."""
    gpus: Annotated[int, msgspec.Meta(gt=0)] = 1
    """Of one replica."""
    memory_gib: NotNegative = 0.0
    """Of one replica."""
    warm_up_s: NotNegative = 300.0
    """From the decision to have one more until it is ready, in wall seconds: node, image, weights."""


class SiteScaling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all pools of a site may take together. None: no more than they take now."""

    gpus: Count | None = None
    memory_gib: NotNegative | None = None


class Scaling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What FleetMind's plan of replicas keeps to."""

    dry_run: bool = True
    """Say what should be, and tell Kubernetes to leave things as they are."""
    pools: dict[str, PoolScaling] = {}
    """By `MODEL@VERSION`, or by `SITE/MODEL@VERSION` where one site differs."""
    sites: dict[str, SiteScaling] = {}

    def of_pool(self, site: str, pool: str) -> PoolScaling:
        """What holds for a pool of a site."""
        return self.pools.get(f"{site}/{pool}") or self.pools.get(pool) or PoolScaling()

    def of_site(self, site: str) -> SiteScaling:
        """What holds for a site."""
        return self.sites.get(site) or SiteScaling()


class Fleet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How FleetMind places requests among sites."""

    stay_local_margin_s: NotNegative = 0.2
    """Another site has to be better by more than this."""
    reserve_share: Share = 0.1
    """Of what a site can take, what it keeps for its own entry."""
    round_trips_ms: dict[str, NotNegative] = {}
    """Between two sites, as `"A-B"`, where it is not to be measured."""
    bandwidth_mbps: dict[str, Positive] = {}
    """Between two sites, likewise; not named: so much that a prompt takes no time."""
    prices: dict[str, NotNegative] = {}
    """By site: seconds of latency that one accepts to save a second of prefill there."""
    rollouts: dict[str, Rollout] = {}
    """By model; of one not named, any version may be used."""
    scaling: Scaling = Scaling()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What operators may change while the fleet runs (`tokenfleet policy set`)."""

    routing: Routing = "predicted"
    admission: bool = True
    wait_share_of_slack: Share = 0.8
    """Refuse when the predicted wait exceeds this share of the slack left after the own prefill."""
    hold_share_of_slack: Share = 0.8
    """A request may do more harm the more of its slack is gone, all that is allowed from this share on."""
    misses_allowed: Positive = 0.36
    """Start a request only where it is expected to push at most so many others over their objective."""
    when_late: WhenLate = "refuse"
    long_context_tokens: Annotated[int, msgspec.Meta(gt=0)] = 16_000
    long_prefills_per_instance: Annotated[int, msgspec.Meta(gt=0)] = 1
    """Prompts of the long_context class that may be computed at one instance at a time."""
    long_prefills_share: Share = 0.75
    """Of a pool's instances, how many may compute such prompts at a time; always at least one."""
    kv_reserve_share: Share = 0.05
    """Of an instance's KV, kept free for answers that grow there."""
    shares: dict[str, ClassShare] = msgspec.field(
        default_factory=lambda: {
            "interactive": ClassShare(floor=0.5),
            "long_context": ClassShare(floor=0.2),
            "batch": ClassShare(floor=0.02),
        }
    )
    queue: QueueLimits = QueueLimits()
    feedback: bool = True
    """Let outcomes move margins and shares within their bounds; off: they stay as configured."""
    retry_budget_share: Share = 0.1
    """Retries may be at most this share of requests, so that an outage is not amplified."""
    request_timeout_s: Positive = 600.0
    fleet: Fleet = Fleet()
    objectives: dict[str, ClassObjective] = msgspec.field(
        default_factory=lambda: {
            "interactive": ClassObjective(ttft_s=4.0, tpot_s=0.1),
            "long_context": ClassObjective(ttft_s=4.0, tpot_s=0.1),
            "batch": ClassObjective(e2e_s=3600.0),
        }
    )
    gpu_hour_prices: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    """What a GPU-hour costs, by pool (`*`: every other), in any one currency: what reports of the ledger count with."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One customer. Keys are stored only as SHA-256 of 256-bit random secrets."""

    tenant: str
    key_hashes: tuple[str, ...] = ()
    tier: Tier = "default"
    """The highest `service_tier` its requests may have."""
    models: tuple[str, ...] | None = None
    """Models it may use; None: all."""
    sites: tuple[str, ...] | None = None
    """Sites its requests may run on; None: all."""
    regions: tuple[str, ...] | None = None
    """Regions its requests may run in; None: all. A site whose region is not known is none of them."""
    weight: Positive = 1.0
    """Its share of a contended class against other tenants' weights."""
    max_concurrency: Annotated[int, msgspec.Meta(gt=0)] = 1024
    tokens_per_minute: Annotated[int, msgspec.Meta(gt=0)] | None = None
    """Input and output tokens together; reserved when a request is accepted, settled when it ends. None: no limit."""
    when_late: WhenLate | None = None
    """None: the policy's."""
    objectives: dict[str, ClassObjective] = {}
    """By class, where they differ from the policy's."""
    schema: int = 1


def problems(policy: Policy) -> list[str]:
    """Why the settings of a policy cannot hold together, one sentence each; none when they can."""
    found: list[str] = []
    known = {*CLASSES, *policy.objectives}
    floors = {name: share.floor for name, share in policy.shares.items() if share.floor}
    if sum(floors.values()) > 1.0 + 1e-9:
        listed = ", ".join(f"{name} {floor:g}" for name, floor in floors.items())
        found.append(
            f"The floors in shares add up to {sum(floors.values()):g}, more than the whole: {listed}."
        )
    for name, share in policy.shares.items():
        if name not in known:
            found.append(f"shares.{name}: there is no class {name}. Known: {', '.join(sorted(known))}.")
        if share.ceiling < share.floor:
            found.append(
                f"shares.{name}: its ceiling ({share.ceiling:g}) is below its floor ({share.floor:g})."
            )
    if policy.kv_reserve_share >= 1.0:
        found.append("kv_reserve_share=1 leaves no KV for any request.")
    for model, rollout in policy.fleet.rollouts.items():
        if not any(weight for name, weight in rollout.weights.items() if name not in rollout.drained):
            found.append(f"fleet.rollouts.{model}: no version that is not drained has a weight.")
    return (
        found
        + scaling_problems(policy.fleet.scaling)
        + price_problems(policy.gpu_hour_prices)
        + objective_problems(policy.objectives)
    )


def scaling_problems(scaling: Scaling) -> list[str]:
    """Pools that are none, and limits that cannot be kept."""
    found: list[str] = []
    for name, pool in scaling.pools.items():
        site, slash, of_site = name.rpartition("/")
        model, _, version = of_site.rpartition("@")
        if not (model and version) or (slash and not site):
            found.append(f"fleet.scaling.pools.{name}: a pool is MODEL@VERSION, or SITE/MODEL@VERSION.")
        if pool.max is not None and pool.max < pool.min:
            found.append(f"fleet.scaling.pools.{name}: max ({pool.max}) is less than min ({pool.min}).")
    for site, limits in scaling.sites.items():
        own = [pool for name, pool in scaling.pools.items() if name.startswith(f"{site}/")]
        for what, limit, least in (
            ("gpus", limits.gpus, sum(pool.min * pool.gpus for pool in own)),
            ("memory_gib", limits.memory_gib, sum(pool.min * pool.memory_gib for pool in own)),
        ):
            if limit is not None and least > limit:
                found.append(
                    f"fleet.scaling.sites.{site}: {what} ({limit:g}) is less than the min of its pools take ({least:g})."
                )
    return found


def price_problems(prices: Mapping[str, float]) -> list[str]:
    """Prices of nothing, or that are none."""
    found: list[str] = []
    for pool, price in prices.items():
        model, _, version = pool.rpartition("@")
        if pool != OTHER_POOLS and not (model and version):
            found.append(f"gpu_hour_prices.{pool}: a pool is MODEL@VERSION, or * for all that have no price.")
        if not isfinite(price) or price < 0:
            found.append(f"gpu_hour_prices.{pool}: {price:g} is no price.")
    return found


def tenant_problems(tenant: Tenant, policy: Policy) -> list[str]:
    """Why a tenant's settings cannot hold together under a policy, one sentence each; none when they can."""
    known = {*CLASSES, *policy.objectives}
    unknown = [
        f"objectives.{name}: there is no class {name}. Known: {', '.join(sorted(known))}."
        for name in tenant.objectives
        if name not in known
    ]
    return unknown + objective_problems(tenant.objectives)


def objective_problems(objectives: Mapping[str, ClassObjective]) -> list[str]:
    """Promises that nobody can keep, or nobody waits for."""
    found: list[str] = []
    for name, promised in objectives.items():
        for shorter, longer in (("ttft_s", "e2e_s"), ("ttft_s", "timeout_s"), ("e2e_s", "timeout_s")):
            least, most = getattr(promised, shorter), getattr(promised, longer)
            if least is not None and most is not None and most < least:
                found.append(f"objectives.{name}: {longer} ({most:g}) is less than {shorter} ({least:g}).")
    return found
