"""The engines of a simulation: what each is, where it stands, and the engine model behind it."""

from collections.abc import Mapping, Sequence

import msgspec

from lab.sim.timing import timed
from lab.sim.workload import LOCAL
from tokenfleet.contracts.fleet import EngineProfile, InstanceRecord, InstanceState
from tokenfleet.contracts.policy import Tenant
from tokenfleet.engine.kv_cache import Removed, Stored
from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import IterationTiming

MODEL = "llama-70b"
VERSION = "1"


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of a scenario."""

    name: str
    profile: EngineProfile
    """As it is registered: what routers know."""
    real_profile: EngineProfile | None = None
    """How the engine is, where not as registered."""
    site: str = LOCAL
    region: str | None = None
    """Where its site lies, as it is registered; None: the site does not say."""
    version: str = VERSION
    kv_events: bool = True
    timing: IterationTiming | None = None
    """How long iterations take, where not as the profile says."""

    @property
    def engine_profile(self) -> EngineProfile:
        """What the engine runs with."""
        return self.real_profile or self.profile


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An instance dies and, later, is back with an empty cache."""

    instance: str
    at_s: float
    back_s: float | None = None
    """None: it stays away."""


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """An instance takes nothing new and finishes what it has."""

    instance: str
    at_s: float
    back_s: float | None = None
    """When it takes requests again, its cache as it was; None: never."""


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """An instance becomes slower by a factor on every coefficient, and stays so."""

    instance: str
    at_s: float
    factor: float


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that stands still during a run."""

    instances: tuple[InstanceSpec, ...]
    block_size: int = 16
    telemetry_interval_s: float = 0.1
    telemetry_delay_s: tuple[float, float] = (0.005, 0.005)
    """Least and most; instances are spread evenly between them."""
    death_known_s: float = 1.5
    """From a death until the registry has forgotten the instance."""
    failures: tuple[Failure, ...] = ()
    drains: tuple[Drain, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    """Of instances whose iterations take as long as their profiles say."""
    round_trip_s: Mapping[tuple[str, str], float] = {}
    tenants: Mapping[str, Tenant] = {}

    def one_way_s(self, site: str, other: str) -> float:
        """Half a round trip."""
        return 0.0 if site == other else self.round_trip_s.get((site, other), 0.0) / 2


class Instance:
    """One engine while a simulation runs."""

    __slots__ = (
        "_block_size",
        "_engine_profile",
        "_pool",
        "alive",
        "busy_samples",
        "engine",
        "generation",
        "record",
        "samples",
        "spec",
        "ticket",
    )

    def __init__(self, spec: InstanceSpec, block_size: int) -> None:
        self.spec = spec
        self.alive = True
        self.generation = 1
        self.ticket = 0
        """Of its one valid timer; older timers are void."""
        self.samples = 0
        self.busy_samples = 0
        self._block_size = block_size
        self._engine_profile = spec.engine_profile
        self._pool = f"{MODEL}@{spec.version}"
        self.start()

    def start(self) -> None:
        """A new engine process, cold."""
        spec = self.spec
        self.engine = EngineModel(
            self._engine_profile, self._block_size, record_kv_changes=spec.kv_events, timing=spec.timing
        )
        self.record = InstanceRecord(
            instance=spec.name,
            node=spec.name,
            site=spec.site,
            model=MODEL,
            version=spec.version,
            url=f"sim://{spec.name}",
            generation=self.generation,
            profile=spec.profile,
            block_size_tokens=self._block_size,
            kv_events=spec.kv_events,
            region=spec.region,
        )

    def slow_down(self, factor: float) -> None:
        """From the next iteration on, of this engine process and its successors."""
        self._engine_profile = timed(self._engine_profile, prefill=factor, step=factor)
        self.engine.profile = self._engine_profile

    def read(self, now_s: float) -> InstanceState:
        """One telemetry reading. The engine has been advanced to this time."""
        engine = self.engine
        self.samples += 1
        time_ns = int(now_s * 1e9)
        if not self.alive:
            return InstanceState(
                instance=self.spec.name,
                generation=self.generation,
                pool=self._pool,
                site=self.spec.site,
                time_ns=time_ns,
                reachable=False,
            )
        running = engine.running
        if running:
            self.busy_samples += 1
        counters = engine.counters
        return InstanceState(
            instance=self.spec.name,
            generation=self.generation,
            pool=self._pool,
            site=self.spec.site,
            time_ns=time_ns,
            reachable=True,
            waiting=engine.waiting,
            running=running,
            kv_usage=engine.kv_usage,
            prefix_queries_tokens=counters.prefix_query_tokens,
            prefix_hits_tokens=counters.prefix_hit_tokens,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            preemptions=counters.preemptions,
        )

    def take_kv_changes(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Cache changes since the last call: pairs of (stored, removed), the removed to be applied first."""
        changes = self.engine.kv.take_changes()
        if not changes:
            return []
        runs: list[tuple[list[int], list[int]]] = []
        for change in changes:
            if isinstance(change, Stored):
                if not runs:
                    runs.append(([], []))
                runs[-1][0].extend(change.hashes)  # type: ignore[arg-type]
            elif isinstance(change, Removed):
                if not runs or runs[-1][0]:
                    runs.append(([], []))
                runs[-1][1].extend(change.hashes)  # type: ignore[arg-type]
        return runs  # type: ignore[return-value]
