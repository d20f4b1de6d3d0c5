"""What the simulator and the policies it runs say to each other.

Every policy, TokenFleet's own and the baselines, sees exactly what a router sees in production: the registry,
telemetry readings as old as the scenario makes them, KV events, and what becomes of the requests it routed.
Times are virtual engine seconds from the start of the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec


class Arrival(NamedTuple):
    """One request as it reaches the router. `spec.blocks` is empty here: `blocks` holds the hashes unpacked."""

    request_id: str
    time_s: float
    tenant: str
    spec: RequestSpec
    blocks: tuple[int, ...]
    """Hashes of the prompt's full blocks, at the pool's block size."""


class Route(NamedTuple):
    """Send it to this instance now."""

    instance: str
    predicted_ttft_s: float | None = None
    """The median of what is expected, from now on."""
    predicted_ttft_p90_s: float | None = None
    predicted_tpot_s: float | None = None
    predicted_tpot_p90_s: float | None = None
    after_s: float = 0.0
    """How long the decision itself is under way to where the request is."""


class Refuse(NamedTuple):
    """Answer with a status now."""

    status: int
    reason: str


class Hold(NamedTuple):
    """Keep it in the router's own queue; `Policy.release` says later what becomes of it."""

    wake_s: float | None = None
    """When `Policy.release` is to be called at the latest."""


Decision = Route | Refuse | Hold


class Released(NamedTuple):
    """What becomes of a request that was held."""

    request_id: str
    decision: Route | Refuse


class Policy(Protocol):
    """A router under test. One object lives for one run; all randomness comes from its constructor's seed.

    The simulator calls it in order of virtual time. It must not keep references into the simulator.
    """

    def joined(self, record: InstanceRecord, now_s: float) -> None:
        """An instance is registered, or came back as a new generation (cold)."""
        ...

    def left(self, instance: str, now_s: float) -> None:
        """An instance is gone; what ran there has failed."""
        ...

    def reading(self, state: InstanceState, now_s: float) -> None:
        """Telemetry of one instance arrived: how it was when it was taken, not how it is."""
        ...

    def blocks(self, instance: str, stored: Sequence[int], removed: Sequence[int], now_s: float) -> None:
        """KV events of one instance arrived. A router without them ignores this."""
        ...

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        """What to do with a request that arrived now.

        Called again for a request whose instance failed before its first token. `spec.excluded_instances` holds
        those that failed it, and those it may not use (another version, a site its tenant may not use).
        """
        ...

    def release(self, now_s: float) -> Iterable[Released]:
        """Called after every change of state while requests are held."""
        ...

    def first_token(self, request_id: str, instance: str, now_s: float) -> None:
        """The first token of a routed request went by."""
        ...

    def ended(self, request_id: str, instance: str, output_tokens: int, now_s: float) -> None:
        """A routed request completed, failed or was cancelled."""
        ...


@runtime_checkable
class SiteAware(Protocol):
    """A policy that knows of sites and tenants; others see one pool, whatever lies between its instances."""

    def network(self, round_trip_s: Mapping[tuple[str, str], float], tenants: Mapping[str, Tenant]) -> None:
        """Called once, before anything else.

        Args:
            round_trip_s: between two sites, in both orders; nothing within a site.
            tenants: by name.
        """
        ...


@runtime_checkable
class Lawful(Protocol):
    """A policy that judges by itself which sites and versions a request may use: nothing is excluded for it."""

    judges_residency: bool


Adjusted = tuple[float, str, float, float]
"""A policy moved one of its own knobs: `(seconds, knob, before, after)`."""


@runtime_checkable
class Adjusting(Protocol):
    """A policy that steers itself and keeps a record of it."""

    @property
    def adjustments(self) -> Sequence[Adjusted]:
        """All changes so far, in order of time."""
        ...


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request: all that the accounting rules need of it."""

    arrival: Arrival
    """Without its blocks."""
    outcome: str
    reason: str
    status: int
    ended_s: float
    instance: str | None = None
    site: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_tokens: int = 0
    reused_tokens: int = 0
    predicted_ttft_s: float | None = None
    """When it was last routed, counted from its arrival as `ttft_s` is."""
    predicted_ttft_p90_s: float | None = None
    predicted_tpot_s: float | None = None
    predicted_tpot_p90_s: float | None = None
    attempt: int = 1
    retried_input_tokens: int = 0
    """Of attempts that failed before."""
