"""Small clusters, workloads and policies for tests of the simulator."""

from collections.abc import Iterable, Sequence

import msgspec

from lab.sim.api import Arrival, Decision, Hold, Released, Route
from lab.sim.cluster import Cluster, Failure, InstanceSpec
from lab.sim.workload import Submission
from lab.traces.model import TraceRequest, blocks_in
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.engine.profile import LLAMA70B_TP4_H100

SMALL = msgspec.structs.replace(
    LLAMA70B_TP4_H100,
    name="small",
    kv_capacity_tokens=16_384,
    max_running_requests=8,
    max_context_tokens=12_288,
)


def cluster(
    instances: int = 2, *, failures: tuple[Failure, ...] = (), sites: Sequence[str] = ("local",)
) -> Cluster:
    """Small instances `i0`, `i1`, ..., dealt to the sites in turn."""
    specs = tuple(
        InstanceSpec(name=f"i{number}", profile=SMALL, site=sites[number % len(sites)])
        for number in range(instances)
    )
    return Cluster(instances=specs, failures=failures)


def submission(
    number: int,
    arrival_s: float,
    input_tokens: int = 1_000,
    output_tokens: int = 20,
    *,
    session: int | None = None,
    timeout_s: float = 600.0,
    entry_site: str = "local",
) -> Submission:
    """A request; those of one session have a common prefix."""
    first = (number if session is None else session) * 1_000 + 1
    request = TraceRequest(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        block_ids=tuple(range(first, first + blocks_in(max(input_tokens, 1)))),
    )
    return Submission(
        number=number,
        arrival_s=arrival_s,
        tenant="default",
        request=request,
        timeout_s=timeout_s,
        entry_site=entry_site,
    )


class Watcher:
    """Routes to one instance after the other, and checks all it is told."""

    def __init__(self) -> None:
        self.records: dict[str, InstanceRecord] = {}
        self.now_s = 0.0
        self.readings = 0
        self.first_tokens: list[str] = []
        self.ends: list[str] = []
        self.left_instances: list[str] = []
        self.generations: list[int] = []
        self._turn = 0

    def _at(self, now_s: float) -> None:
        assert now_s >= self.now_s, "time ran backwards"
        self.now_s = now_s

    def joined(self, record: InstanceRecord, now_s: float) -> None:
        self._at(now_s)
        self.records[record.instance] = record
        self.generations.append(record.generation)

    def left(self, instance: str, now_s: float) -> None:
        self._at(now_s)
        del self.records[instance]
        self.left_instances.append(instance)

    def reading(self, state: InstanceState, now_s: float) -> None:
        self._at(now_s)
        assert state.time_ns <= now_s * 1e9 + 1
        if state.kv_usage is not None:
            assert 0.0 <= state.kv_usage <= 1.0
        self.readings += 1

    def blocks(self, instance: str, stored: Sequence[int], removed: Sequence[int], now_s: float) -> None:
        self._at(now_s)

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        self._at(now_s)
        usable = [name for name in sorted(self.records) if name not in arrival.spec.excluded_instances]
        self._turn += 1
        return Route(usable[self._turn % len(usable)])

    def release(self, now_s: float) -> Iterable[Released]:
        return ()

    def first_token(self, request_id: str, instance: str, now_s: float) -> None:
        self._at(now_s)
        self.first_tokens.append(request_id)

    def ended(self, request_id: str, instance: str, output_tokens: int, now_s: float) -> None:
        self._at(now_s)
        self.ends.append(request_id)


class Keeper(Watcher):
    """Holds everything and, if told to, lets it go at a time."""

    def __init__(self, until_s: float | None = None) -> None:
        super().__init__()
        self._until_s = until_s
        self._held: list[Arrival] = []

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        self._held.append(arrival)
        return Hold()

    def release(self, now_s: float) -> Iterable[Released]:
        if self._until_s is None or now_s < self._until_s:
            return ()
        held, self._held = self._held, []
        return [Released(arrival.request_id, Route("i0")) for arrival in held]
