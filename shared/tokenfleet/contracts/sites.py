"""What sites say of themselves to each other, about once a second, so that a placement needs no cross-site call.

MessagePack. `SiteSummary` comes from the TokenPilot that decides for a pool, leases from the site's FleetMind.
"""

from typing import Literal

import msgspec

ONE_IN = 32
"""The share of blocks that summaries tell of at most: those whose hash is divisible by this."""


WAITING_VALID_S = 2.0
"""How long what SLOMax says it holds is believed."""


class SiteSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the ready instances of a pool are busy with and what they have cached."""

    site: str
    pool: str
    time_ns: int
    loads: bytes = b""
    """By column and instance, as `tokenfleet.load.summary` packs them; empty while nothing is ready."""
    waiting_s: float = 0.0
    """Prefill of the requests that SLOMax holds, in engine seconds."""
    prefixes: tuple[bytes, ...] | None = None
    """By instance as in `loads`: fingerprints of the cached blocks told of (`tokenfleet.load.prefixes`). None: this one says
    nothing of them."""
    one_in: int = ONE_IN
    """Only blocks whose hash is divisible by this are told of."""
    schema: int = 1


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the deciding SLOMax of a pool holds in its queues."""

    site: str
    pool: str
    work_s: float
    """Prefill, in engine seconds."""
    requests: int
    schema: int = 1


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity of another site that a diverted request was placed on."""

    lease_id: str
    work_s: float
    """Of it, what the request takes: seconds of one instance."""


class LeaseAsk(msgspec.Struct, frozen=True, kw_only=True):
    """An entry asks a site for capacity of a pool that its requests may be diverted to."""

    holder: str
    """The FleetMind replica that asks."""
    site: str
    """Where the holder is."""
    pool: str
    sequence: int
    """Rises with each ask; the answer repeats it, so that the holder counts from when it asked."""
    wanted_s: float
    """What it diverted there lately, or would have, in seconds of one instance per second."""
    returned: tuple[Lease, ...] = ()
    """What it had left of leases that it uses no more."""
    schema: int = 1


class LeaseGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: so much is the holder's alone until it is spent or its time is over."""

    holder: str
    site: str
    """Whose capacity it is."""
    pool: str
    sequence: int
    lease_id: str
    work_s: float
    valid_s: float
    """Wall seconds, counted by the holder from when it asked."""
    limit_s: float
    """The most that one request takes of it."""
    schema: int = 1


Happened = Literal["first_token", "refused", "failed", "ended"]


class Fared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request fares that entered here: what an ingress tells its own FleetMind.

    Of requests at other sites also that their first token came; of all, how they ended.
    """

    request_id: str
    site: str
    """Where it was placed."""
    pool: str
    happened: Happened
    ttft_s: float | None = None
    """Engine seconds since it was submitted."""
    schema: int = 1


class AskedOf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked of one model, by requests that may run at the same sites."""

    model: str
    work: float
    """Seconds of one instance per second: prefill of what is not cached, and a share of the steps that decode the answer."""
    sites: tuple[str, ...] | None = None
    """Where it may run, as far as is known; None: everywhere."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What one FleetMind replica was asked to place in an interval (JSON, kept in the FLEET stream). A site's demand is the sum
    over its replicas; refused requests count, retries and repeated questions do not.
    """

    site: str
    """Where the requests entered."""
    replica: str
    interval_start_s: int
    """Unix time; a multiple of the interval."""
    interval_s: int
    asked: tuple[AskedOf, ...]
    """Also those of which nothing was asked, so that silence is not taken for nothing."""
    schema: int = 1
