"""Small fleets for the baselines' tests: records, readings and arrivals with everything but the point left out."""

from collections.abc import Iterable

from lab.baselines.common import Router
from lab.sim.api import Arrival, Decision, Route
from tokenfleet.contracts.fleet import EngineProfile, InstanceRecord, InstanceState
from tokenfleet.contracts.requests import RequestSpec

BLOCK_TOKENS = 64

PROFILE = EngineProfile(
    name="simple",
    base_s=0.0,
    decode_s_per_request=0.001,
    decode_s_per_context_token=0.0,
    prefill_s_per_token=0.0001,
    attention_s_per_token_pair=0.0,
    kv_capacity_tokens=64_000,
    iteration_budget_tokens=2_048,
    max_running_requests=128,
)
"""A prefill takes 0.1 ms a token, a decode step 1 ms for each request in it."""


def record(name: str, site: str = "x", version: str = "1", generation: int = 1, **kw: bool) -> InstanceRecord:
    return InstanceRecord(
        instance=name,
        node=name,
        site=site,
        model="m",
        version=version,
        url="sim://",
        generation=generation,
        profile=PROFILE,
        block_size_tokens=BLOCK_TOKENS,
        **kw,
    )


def fleet(router: Router, names: Iterable[str] = "abc", **sites: str) -> Router:
    """The router with these instances, all of site x unless said otherwise."""
    for name in names:
        router.joined(record(name, site=sites.get(name, "x")), 0.0)
    return router


def read(
    router: Router, name: str, now_s: float = 0.0, waiting: int = 0, running: int = 0, kv: float = 0.0
) -> None:
    """A reading arrives."""
    router.reading(
        InstanceState(
            instance=name,
            generation=router.loads[name].record.generation,
            pool="m@1",
            site="x",
            time_ns=int(now_s * 1e9),
            reachable=True,
            waiting=waiting,
            running=running,
            kv_usage=kv,
        ),
        now_s,
    )


_ids: dict[tuple[int, str, int], int] = {}


def prompt(*parts: tuple[str, int]) -> tuple[int, ...]:
    """Chained block hashes: parts of so many blocks each; equal beginnings of parts share blocks."""
    parent, hashes = 0, list[int]()
    for label, blocks in parts:
        for i in range(blocks):
            parent = _ids.setdefault((parent, label, i), len(_ids) + 1)
            hashes.append(parent)
    return tuple(hashes)


def arrival(
    request_id: str,
    tokens: int | None = None,
    blocks: tuple[int, ...] = (),
    entry: str = "x",
    version: str | None = None,
    excluded: tuple[str, ...] = (),
    deadline_s: float = 0.0,
    task: str | None = None,
) -> Arrival:
    """A request; as long as its blocks unless said otherwise."""
    spec = RequestSpec(
        model="m",
        version=version,
        entry_site=entry,
        ingress="i",
        input_tokens=len(blocks) * BLOCK_TOKENS if tokens is None else tokens,
        max_output_tokens=100,
        block_size_tokens=BLOCK_TOKENS,
        excluded_instances=excluded,
        deadline_ns=int(deadline_s * 1e9),
        task=task,
    )
    return Arrival(request_id, 0.0, "t", spec, blocks)


def routed_to(decision: Decision) -> str:
    """The instance of a decision that has to be one."""
    assert isinstance(decision, Route), decision
    return decision.instance


def send(
    router: Router,
    name: str,
    request_id: str,
    tokens: int | None = None,
    blocks: tuple[int, ...] = (),
    now_s: float = 0.0,
) -> None:
    """Put a request on a given instance by excluding all others."""
    others = tuple(other for other in router.loads if other != name)
    decision = router.decide(arrival(request_id, tokens, blocks, excluded=others), now_s)
    assert routed_to(decision) == name
