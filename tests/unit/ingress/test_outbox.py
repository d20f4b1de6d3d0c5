"""An outcome is published until it is stored, and only then struck from the journal."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from ingress import outbox
from ingress.journal import Journal, Line, outcome_of
from ingress.outbox import Outbox
from tokenfleet.bus import Bus
from tokenfleet.contracts.requests import Ended, RequestSpec, Submitted
from tokenfleet.errors import UnavailableError

SUBMITTED = Submitted(
    event_id="r.1.submitted",
    request_id="r",
    attempt=1,
    tenant="t",
    pool="m",
    site="local",
    time_ns=1,
    request=RequestSpec(
        model="m", entry_site="local", ingress="i", input_tokens=1, max_output_tokens=1, block_size_tokens=16
    ),
)


class AbsentBus:
    """A bus whose server comes back after a number of failed publishes."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.published: list[tuple[str, str]] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    async def publish_acked(self, subject: str, _: Ended, event_id: str, **__: Any) -> bool:
        self.published.append((subject, event_id))
        if len(self.published) <= self.failures:
            raise UnavailableError("away")
        return False


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "j")
    journal.accepted(SUBMITTED)
    return journal


async def run(bus: AbsentBus, journal: Journal, timeout_s: float) -> bool:
    box = Outbox(cast(Bus, bus), journal)
    box.start()
    ended = outcome_of(Line(accepted=SUBMITTED), 2, 1.0)
    journal.ended(ended)
    box.put(ended)
    flushed = await box.flush(timeout_s)
    for task in bus.tasks:
        task.cancel()
    await asyncio.gather(*bus.tasks, return_exceptions=True)
    return flushed


async def test_publishing_is_repeated_with_the_same_id_until_it_is_stored(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_BACKOFF_S", 0.001)
    bus = AbsentBus(failures=3)
    assert await run(bus, journal, 2.0)
    assert bus.published == [("tf.v1.local.request.m.failed", "r.end")] * 4
    assert journal.backlog == 0


async def test_what_is_not_stored_stays_in_the_journal(journal: Journal) -> None:
    assert not await run(AbsentBus(failures=10**6), journal, 0.05)
    assert journal.backlog == 1


async def test_outcomes_that_a_cut_off_site_keeps_delay_no_others(tmp_path: Path) -> None:
    class CutOffBus(AbsentBus):
        async def publish_acked(self, subject: str, _: Ended, event_id: str, **__: Any) -> bool:
            self.published.append((subject, event_id))
            if ".away." in subject:
                raise UnavailableError("no JetStream stream takes this subject")
            return False

    bus = CutOffBus(failures=0)
    journal = Journal(tmp_path / "j")
    box = Outbox(cast(Bus, bus), journal)
    box.start()
    ended = outcome_of(Line(accepted=SUBMITTED), 2, 1.0)
    for number in range(2 * outbox.WORKERS):
        box.put(replace(ended, site="away", request_id=f"a{number}", event_id=f"a{number}.end"))
    box.put(ended)
    assert not await box.flush(0.05)
    assert ("tf.v1.local.request.m.failed", "r.end") in bus.published
    for task in bus.tasks:
        task.cancel()
