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
    weights: tuple[Positive, ...] = ()
    """Of the first tenants, in order; the others weigh 1."""
    confined_share: Share = 0.0
    confined_to: str = LOCAL


class Flood(_Table, frozen=True, kw_only=True):
    """One tenant offers several times an equal share of what the trace offers meanwhile.

    Between two shares of the run, sessions like the trace's own, with prompts of their own, come on top of its usual
    requests. Those of the other tenants stay what and when they are.
    """

    tenant: str
    """One of `tenants`, by name."""
    factor: Annotated[float, msgspec.Meta(ge=1)]
    """1: it offers its share like everybody. Figures of the others are kept apart even so."""
    from_share: Share
    to_share: Share


class BatchFile(_Table, frozen=True, kw_only=True):
    """Lines uploaded together, sent one after the other, and due together."""

    lines_share: Share
    """Of all lines."""
    from_share: Share
    """When the first arrives, as a share of the run."""
    due_share: Positive
    """When they are due, likewise."""


class Batch(_Table, frozen=True, kw_only=True):
    """Batch files beside the trace. A line is a request of another trace, made a batch line."""

    lines_per_request: Positive
    """Lines for each request of the scenario's trace."""
    files: Annotated[tuple[BatchFile, ...], msgspec.Meta(min_length=1)]
    lines_per_s: Positive = 20.0
    """How fast the lines of a file are sent. All at once, a router that only knows of load what telemetry says would
    send them all to one instance."""
    trace: str = "generated:chat"
    alone: bool = False
    """The scenario's own trace only says how long the run is: what the pool makes of the lines by themselves."""


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


def tenant_name(number: int) -> str:
    """What a scenario's tenants are called."""
    return f"tenant-{number}"


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
    flood: Flood | None = None
    batch: Batch | None = None
    pinned: Pinned | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites with a pool, in order."""
        return tuple(dict.fromkeys(pool.site for pool in self.pools))
