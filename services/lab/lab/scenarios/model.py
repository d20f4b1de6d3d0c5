"""What a scenario file says."""

from typing import Annotated

import msgspec

from lab.sim.workload import LOCAL

Positive = Annotated[float, msgspec.Meta(gt=0)]
Natural = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]

LEAST_SPEED, GREATEST_SPEED = 1e-3, 1e6
Speed = Annotated[float, msgspec.Meta(ge=LEAST_SPEED, le=GREATEST_SPEED)]
"""Telemetry goes on while nothing arrives, so a run at a speed near nothing would never end."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: a misspelt key is an error, not a default."""


class Hardware(_Table, frozen=True, kw_only=True):
    """An engine profile that differs from a known one by factors."""

    base: str
    prefill_time_factor: Positive = 1.0
    decode_time_factor: Positive = 1.0
    kv_capacity_factor: Positive = 1.0


class Pool(_Table, frozen=True, kw_only=True):
    """Equal instances of one site."""

    instances: Annotated[int, msgspec.Meta(ge=0)]
    profile: str = "llama70b-tp4-h100"
    """A profile of the engine model, or one of the scenario's own `hardware`."""
    site: str = LOCAL
    version: str = "1"
    kv_events: bool = True


class Target(_Table, frozen=True, kw_only=True):
    """The speed is the one at which this policy attains this share."""

    policy: str
    attainment: Share
    least_speed: Speed
    greatest_speed: Speed


class Step(_Table, frozen=True, kw_only=True):
    """Between two shares of the undisturbed run, arrivals come `factor` times faster."""

    from_share: Share
    to_share: Share
    factor: Positive


class Regions(_Table, frozen=True, kw_only=True):
    """Sessions enter at one of several sites each; every site's rate swings like a day, one after the other."""

    sites: tuple[str, ...]
    amplitude: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


class Tenants(_Table, frozen=True, kw_only=True):
    """Sessions are dealt to tenants; a share of these may use one site only."""

    count: Natural
    confined_share: Share = 0.0
    confined_to: str = LOCAL


class Pinned(_Table, frozen=True, kw_only=True):
    """A share of the requests asks for one version."""

    share: Share
    version: str


class Death(_Table, frozen=True, kw_only=True):
    """An instance dies, and is back with an empty cache later. Virtual seconds."""

    instance: str
    at_s: NotNegative
    back_s: NotNegative | None = None


class Drift(_Table, frozen=True, kw_only=True):
    """An engine becomes slower while it runs, whatever its registered profile says. Virtual seconds."""

    instance: str
    at_s: NotNegative
    factor: Annotated[float, msgspec.Meta(ge=1)]
    """On every coefficient of its timing, from then on."""


class Scenario(_Table, frozen=True, kw_only=True):
    """One experiment, whatever the policy."""

    name: str
    description: str
    trace: str
    """A file, looked for as `lab.scenarios.load.find_trace` says, or a generator's name."""
    otherwise: str = "generated:chat"
    """The generator used where the file is not there."""
    speed: Speed | None = None
    """How much faster than recorded requests arrive; or `target`."""
    target: Target | None = None
    pools: tuple[Pool, ...]
    hardware: dict[str, Hardware] = {}
    block_size_tokens: Natural = 16
    telemetry_interval_s: Positive = 0.1
    telemetry_delay_s: tuple[NotNegative, NotNegative] = (0.005, 0.005)
    """Least and most; instances are spread evenly between them."""
    steps: tuple[Step, ...] = ()
    failures: tuple[Death, ...] = ()
    profile_error: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """Each engine's real coefficients are off from its registered profile by up to this share, drawn by the seed:
    one factor for its prefill, one for its decode steps."""
    profile_error_registered: bool = False
    """The registered profiles say what was drawn: the same engines, truly described."""
    drift: Drift | None = None
    entry_site: str | None = None
    """Where everything enters; or `regions`. Default: the first pool's site."""
    regions: Regions | None = None
    round_trips_ms: dict[str, NotNegative] = {}
    """Between two sites, as `"A-B"`."""
    tenants: Tenants | None = None
    pinned: Pinned | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites with a pool, in order."""
        return tuple(dict.fromkeys(pool.site for pool in self.pools))
