"""What every baseline keeps: the registry, the last readings, and the requests it routed that have not ended."""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from lab.sim.api import Arrival, Decision, Refuse, Released, Route
from slomax.policy.classify import classify, objective_for
from tokenfleet.contracts import policy as contracts
from tokenfleet.contracts.fleet import EngineProfile, InstanceRecord, InstanceState
from tokenfleet.contracts.requests import Objective, RequestSpec

DEFAULT_PROMISES = contracts.Policy()
"""The objectives that a baseline with objectives is configured with: those of TokenFleet's default policy."""


class Routed:
    """One request that was routed and has not ended."""

    __slots__ = ("first_token_s", "input_tokens", "instance", "request_id", "routed_s", "uncached_tokens")

    def __init__(
        self, request_id: str, instance: str, input_tokens: int, uncached_tokens: int, routed_s: float
    ) -> None:
        self.request_id = request_id
        self.instance = instance
        self.input_tokens = input_tokens
        self.uncached_tokens = uncached_tokens
        """Input tokens this router believes the instance has to compute."""
        self.routed_s = routed_s
        self.first_token_s: float | None = None


class Load:
    """What this router has in flight at one instance, and the instance's last reading."""

    __slots__ = (
        "decoding",
        "decoding_tokens",
        "heard_s",
        "pending",
        "pending_tokens",
        "record",
        "requests",
        "state",
    )

    def __init__(self, record: InstanceRecord) -> None:
        self.record = record
        self.state: InstanceState | None = None
        self.heard_s = 0.0
        self.requests = 0
        self.pending: dict[str, Routed] = {}
        """Routed and without a first token, oldest first."""
        self.decoding: dict[str, Routed] = {}
        self.pending_tokens = 0
        """Uncached tokens of those pending."""
        self.decoding_tokens = 0
        """Input tokens of those decoding."""

    @property
    def profile(self) -> EngineProfile:
        return self.record.profile

    @property
    def waiting(self) -> int:
        """Requests the engine said it has not scheduled; none while nothing is known."""
        return (self.state.waiting or 0) if self.state is not None else 0

    @property
    def running(self) -> int:
        return (self.state.running or 0) if self.state is not None else 0

    @property
    def kv_usage(self) -> float:
        return (self.state.kv_usage or 0.0) if self.state is not None else 0.0


class Router:
    """Base of the baselines: a subclass says which of the usable instances it chooses.

    An instance is usable when it is registered, not draining, of the request's model and version, and not excluded
    by the request. Which instances exist is all that is taken from the registry: a crashed one is usable until it
    leaves.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - reproducible ties, nothing secret
        self.loads: dict[str, Load] = {}
        self.requests: dict[str, Routed] = {}
        self._usable: dict[tuple[str, str | None], list[str]] = {}

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str | Decision:
        """The instance for a request among those usable (at least one, by name), or another decision."""
        raise NotImplementedError

    def uncached_tokens(self, arrival: Arrival, instance: str) -> int:
        """Input tokens the instance has to compute, as far as this router knows; all unless overridden."""
        return arrival.spec.input_tokens

    def usable(self, spec: RequestSpec) -> list[str]:
        """Instances that may serve a request, by name."""
        names = self._usable.get((spec.model, spec.version))
        if names is None:
            names = sorted(name for name, load in self.loads.items() if _serves(load.record, spec))
            self._usable[spec.model, spec.version] = names
        if not spec.excluded_instances:
            return names
        return [name for name in names if name not in spec.excluded_instances]

    def least(self, names: Iterable[str], cost: Callable[[str], float]) -> str:
        """The instance of least cost; a tie is drawn."""
        least, best = float("inf"), list[str]()
        for name in names:
            value = cost(name)
            if value < least:
                least, best = value, [name]
            elif value == least:
                best.append(name)
        return best[0] if len(best) == 1 else self.random.choice(best)

    def least_requests(self, names: Iterable[str]) -> str:
        """The instance with the fewest requests of this router in flight; a tie is drawn."""
        loads = self.loads
        return self.least(names, lambda name: loads[name].requests)

    def joined(self, record: InstanceRecord, now_s: float) -> None:
        known = self.loads.get(record.instance)
        if known is not None and known.record.generation == record.generation:
            known.record = record
            self._usable.clear()
            return
        if known is not None:
            self.left(record.instance, now_s)
        self.loads[record.instance] = Load(record)
        self._usable.clear()
        self.appeared(record)

    def left(self, instance: str, now_s: float) -> None:
        load = self.loads.get(instance)
        if load is None:
            return
        for routed in [*load.pending.values(), *load.decoding.values()]:
            self._forget(routed, now_s, output_tokens=0)
        del self.loads[instance]
        self._usable.clear()
        self.vanished(load.record)

    def reading(self, state: InstanceState, now_s: float) -> None:
        load = self.loads.get(state.instance)
        if load is None or state.generation != load.record.generation or not state.reachable:
            return
        before, load.state, load.heard_s = load.state, state, now_s
        self.heard(load, before, now_s)

    def blocks(self, instance: str, stored: Sequence[int], removed: Sequence[int], now_s: float) -> None:
        """KV events: ignored unless a baseline uses them."""

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        usable = self.usable(arrival.spec)
        if not usable:
            return Refuse(503, "no_ready_instance")
        chosen = self.choose(arrival, usable, now_s)
        return self.route(arrival, chosen, now_s) if isinstance(chosen, str) else chosen

    def route(
        self, arrival: Arrival, instance: str, now_s: float, predicted_ttft_s: float | None = None
    ) -> Route:
        """Book a request at an instance."""
        tokens = arrival.spec.input_tokens
        uncached = self.uncached_tokens(arrival, instance)
        routed = Routed(arrival.request_id, instance, tokens, uncached, now_s)
        load = self.loads[instance]
        self.requests[arrival.request_id] = load.pending[arrival.request_id] = routed
        load.requests += 1
        load.pending_tokens += uncached
        self.booked(arrival, routed)
        return Route(instance, predicted_ttft_s)

    def release(self, now_s: float) -> Iterable[Released]:
        return ()

    def first_token(self, request_id: str, instance: str, now_s: float) -> None:
        routed = self.requests.get(request_id)
        if routed is None or routed.instance != instance or routed.first_token_s is not None:
            return
        load = self.loads[instance]
        del load.pending[request_id]
        load.pending_tokens -= routed.uncached_tokens
        load.decoding[request_id] = routed
        load.decoding_tokens += routed.input_tokens
        routed.first_token_s = now_s
        self.prefilled(routed, now_s)

    def ended(self, request_id: str, instance: str, output_tokens: int, now_s: float) -> None:
        routed = self.requests.get(request_id)
        if routed is not None and routed.instance == instance:
            self._forget(routed, now_s, output_tokens)

    def _forget(self, routed: Routed, now_s: float, output_tokens: int) -> None:
        del self.requests[routed.request_id]
        load = self.loads[routed.instance]
        load.requests -= 1
        if load.pending.pop(routed.request_id, None) is not None:
            load.pending_tokens -= routed.uncached_tokens
        elif load.decoding.pop(routed.request_id, None) is not None:
            load.decoding_tokens -= routed.input_tokens
        self.finished(routed, output_tokens, now_s)

    # What a baseline may keep beside this; nothing unless overridden.

    def appeared(self, record: InstanceRecord) -> None:
        """A cold instance joined."""

    def vanished(self, record: InstanceRecord) -> None:
        """An instance left, or is about to be replaced by a new generation of itself."""

    def heard(self, load: Load, before: InstanceState | None, now_s: float) -> None:
        """A reading arrived; `before` is the one it replaces."""

    def booked(self, arrival: Arrival, routed: Routed) -> None:
        """A request was routed."""

    def prefilled(self, routed: Routed, now_s: float) -> None:
        """A routed request got its first token."""

    def finished(self, routed: Routed, output_tokens: int, now_s: float) -> None:
        """A routed request ended, in whatever way; it is no longer counted."""


def objective_of(spec: RequestSpec, promises: contracts.Policy) -> Objective:
    """What a request is promised under a policy."""
    return objective_for(classify(spec, promises)[0], spec, promises)


def abandoned(arrival: Arrival, now_s: float) -> bool:
    """Whether nobody waits for this request any more: a queue drops it as it would on a closed connection."""
    deadline_ns = arrival.spec.deadline_ns
    return bool(deadline_ns) and now_s * 1e9 >= deadline_ns - 1


def _serves(record: InstanceRecord, spec: RequestSpec) -> bool:
    return (
        not record.draining
        and record.model == spec.model
        and (spec.version is None or record.version == spec.version)
    )
