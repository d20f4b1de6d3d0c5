"""Keeping the index fed over the bus."""

import asyncio
from typing import Any

import pytest

from tokenfleet.blocks import pack
from tokenfleet.contracts.fleet import KvDelta, KvSnapshot
from tokenfleet.errors import UnavailableError
from tokenpilot import kv_sync
from tokenpilot.kv_sync import KvSync
from tokenpilot.policy.prefix_index import PrefixIndex


class Agents:
    """Stands in for the bus: the node agents answer snapshot requests from `answers`, in order."""

    def __init__(self, *answers: KvSnapshot | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def subscribe(self, subject: str, kind: type, handler: Any, **options: Any) -> None:
        self.deliver = handler

    def spawn(self, coroutine: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def request(self, *_: Any, **options: Any) -> KvSnapshot:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def settled(self) -> None:
        while self.tasks:
            await self.tasks.pop(0)


class StoppedClock:
    time_scale = 1.0
    now = 100.0

    def wall_s(self) -> float:
        return self.now


def snapshot(sequence: int, *blocks: int) -> KvSnapshot:
    return KvSnapshot(instance="a", generation=1, sequence=sequence, blocks=pack(blocks))


def delta(sequence: int, *stored: int) -> KvDelta:
    return KvDelta(instance="a", generation=1, sequence=sequence, stored=pack(stored))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_sync, "RETRY_S", 0.0)


async def started(agents: Agents) -> tuple[KvSync, PrefixIndex, StoppedClock]:
    index, clock = PrefixIndex(), StoppedClock()
    sync = KvSync(agents, "local", index, clock)  # type: ignore[arg-type]
    await sync.start()
    return sync, index, clock


async def test_an_instance_is_approximate_without_events_degraded_on_joining_and_exact_with_a_snapshot():
    agents = Agents(snapshot(3, 1, 2))
    sync, index, _ = await started(agents)
    assert sync.quality("a") == "approximate"
    sync.joined("a")
    assert sync.quality("a") == "degraded"
    await agents.settled()
    assert sync.quality("a") == "exact"
    assert index.match([1, 2]) == {"a": 2}
    sync.left("a")
    assert sync.quality("a") == "approximate"
    assert index.match([1, 2]) == {}


async def test_a_gap_is_repaired_even_if_the_first_answers_fail_or_are_too_old():
    agents = Agents(snapshot(0), UnavailableError("the agent restarts"), snapshot(3, 1), snapshot(5, 1, 2))
    sync, index, _ = await started(agents)
    sync.joined("a")
    await agents.settled()
    await agents.deliver(delta(1, 1), None)
    await agents.deliver(delta(5, 2), None)
    assert sync.quality("a") == "degraded"
    await agents.settled()
    assert sync.quality("a") == "exact"
    assert index.match([1, 2]) == {"a": 2}
    assert agents.asked == 4


async def test_an_instance_that_leaves_while_its_snapshot_is_on_its_way_leaves_nothing():
    agents = Agents(snapshot(3, 1, 2))
    sync, index, _ = await started(agents)
    sync.joined("a")
    sync.left("a")
    await agents.settled()
    assert index.match([1]) == {}
    await agents.deliver(delta(4, 9), None)
    assert index.match([9]) == {}


async def test_silence_degrades():
    agents = Agents(snapshot(3, 1))
    sync, _, clock = await started(agents)
    sync.joined("a")
    await agents.settled()
    clock.now += 60
    assert sync.quality("a") == "degraded"
    await agents.deliver(delta(4), None)
    assert sync.quality("a") == "exact"


async def test_sweeping_frees_what_departed_instances_held():
    agents = Agents(snapshot(3, *range(30_000)))
    sync, index, _ = await started(agents)
    sync.joined("a")
    await agents.settled()
    sync.left("a")
    await sync.sweep()
    assert len(index) == 0
