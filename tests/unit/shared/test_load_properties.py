"""Whatever happens, in whatever order and however often: the load view says what a plain list of requests says."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from fleets import PROFILE, record, state
from hypothesis import given
from hypothesis import strategies as st
from loads import at

from tokenfleet.load import LoadView

INSTANCES = ("a", "b", "c")
REQUESTS, ATTEMPTS = 6, 3


@dataclass(slots=True)
class Known:
    """A request in flight."""

    attempt: int
    instance: str
    input_tokens: int
    reused_tokens: int
    routed_s: float
    number: int
    """Of all routings: an id that is never used again."""
    decoding: bool = False
    behind: dict[int, float] = field(default_factory=dict[int, float])
    """Prefill arithmetic of the prompts that came after it, but for those that were cancelled."""

    @property
    def uncached_tokens(self) -> int:
        return self.input_tokens - self.reused_tokens

    @property
    def compute_s(self) -> float:
        attention = PROFILE.attention_s_per_token_pair * (self.reused_tokens + self.uncached_tokens / 2)
        return self.uncached_tokens * (PROFILE.prefill_s_per_token + attention)


class Reference:
    """The rules, for one request at a time."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self._ended_attempt: dict[str, int] = {}
        self._routings = 0

    def at(self, instance: str) -> list[Known]:
        return [each for each in self.known.values() if each.instance == instance]

    def routed(self, name: str, attempt: int, instance: str, tokens: int, reused: int, now_s: float) -> None:
        if name in self.known:
            if self.known[name].attempt >= attempt:
                return
            self._leave(name)
        if self._ended_attempt.get(name, 0) >= attempt:
            return
        self._routings += 1
        request = Known(attempt, instance, tokens, reused, now_s, self._routings)
        for other in self.at(instance):
            other.behind[request.number] = request.compute_s
        self.known[name] = request

    def first_token(self, name: str) -> None:
        if name in self.known:
            self.known[name].decoding = True

    def ended(self, name: str, attempt: int) -> None:
        self._ended_attempt[name] = max(attempt, self._ended_attempt.get(name, 0))
        if name in self.known and self.known[name].attempt <= attempt:
            self._leave(name)

    def dropped(self, instance: str) -> None:
        self.known = {name: each for name, each in self.known.items() if each.instance != instance}

    def expired(self, before_s: float) -> None:
        for name in [name for name, each in self.known.items() if each.routed_s < before_s]:
            self._leave(name)

    def _leave(self, name: str) -> None:
        request = self.known.pop(name)
        if not request.decoding:
            for other in self.at(request.instance):
                other.behind.pop(request.number, None)


Event = tuple[str, int, int, str, float]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["routed"] * 4 + ["first_token"] * 3 + ["ended"] * 3 + ["drop", "expire", "reading"]),
        st.integers(0, REQUESTS - 1),
        st.integers(1, ATTEMPTS),
        st.sampled_from(INSTANCES),
        st.sampled_from([0.0, 0.01, 0.3, 5.0]),
    ),
    min_size=20,
    max_size=60,
)


def apply(event: Event, load: LoadView, reference: Reference, now_s: float, *, streamed: bool = True) -> None:
    kind, number, attempt, instance, _ = event
    name = f"r{number}"
    # Prompts all have different lengths, so that a row of the table can be told from another.
    tokens, reused = 1_000 + 100 * number + 10 * attempt, 64 * number
    if kind == "routed":
        load.routed(name, attempt, instance, tokens, reused, now_s, streamed=streamed)
        reference.routed(name, attempt, instance, tokens, reused, now_s)
    elif kind == "first_token":
        load.first_token(name, now_s)
        reference.first_token(name)
    elif kind == "ended":
        load.ended(name, attempt, now_s, output_tokens=100 if number % 2 else None)
        reference.ended(name, attempt)
    elif kind == "drop":
        load.drop_instance(instance)
        reference.dropped(instance)
    elif kind == "expire":
        load.expire(now_s - 5.0, now_s)
        reference.expired(now_s - 5.0)
    else:
        load.reading(state(instance, waiting=number, running=attempt, kv_usage=0.9), now_s, now_s)
        load.joined(record(instance))


def assert_agrees(load: LoadView, reference: Reference) -> None:
    """Every sum of an instance and every row of the table follows from the requests in flight."""
    assert len(load) == len(reference.known)
    for instance in INSTANCES:
        requests = reference.at(instance)
        pending = [each for each in requests if not each.decoding]
        now = at(load, instance)
        assert load.outstanding(instance) == len(requests)
        assert (now.pending, now.decoding) == (len(pending), len(requests) - len(pending))
        assert now.pending_tokens == sum(each.uncached_tokens for each in pending)
        assert now.pending_context_tokens == sum(each.input_tokens for each in pending)
        assert now.pending_compute_s == pytest.approx(sum(each.compute_s for each in pending), abs=1e-6)
        head = pending[0] if pending else None
        assert now.head_tokens == (head.uncached_tokens if head else 0)

        columns, there = load.table.requests(load.slots([instance]))
        rows = {
            int(tokens): (bool(np.isfinite(first_token_s)), now.enqueued_compute_s - through_s)
            for tokens, first_token_s, through_s in zip(
                columns.context_tokens[there],
                columns.first_token_s[there],
                columns.compute_through_s[there],
                strict=True,
            )
        }
        assert rows.keys() == {each.input_tokens for each in requests}
        for each in requests:
            decoding, behind_s = rows[each.input_tokens]
            assert decoding == each.decoding
            assert behind_s == pytest.approx(sum(each.behind.values()), abs=1e-6)
        first = columns.first_iteration[there]
        produced = float((now.iterations - first[np.isfinite(first)]).sum())
        prompts = sum(each.input_tokens for each in requests if each.decoding)
        assert now.context_tokens == pytest.approx(prompts + produced, abs=1e-6)


@given(EVENTS)
def test_at_every_step_it_agrees_with_the_plain_rules_and_in_the_end_nothing_is_left(events: list[Event]):
    load, reference = LoadView(), Reference()
    now_s = 0.0
    for event in events:
        now_s += event[-1]
        apply(event, load, reference, now_s)
        assert_agrees(load, reference)
    for number in range(REQUESTS):
        load.ended(f"r{number}", ATTEMPTS, now_s + 1.0)
    assert len(load) == 0
    for instance in INSTANCES:
        now = at(load, instance)
        assert not load.table.requests(load.slots([instance]))[1].any()
        sums = (now.pending, now.decoding, now.pending_tokens, now.pending_context_tokens)
        assert sums == (0, 0, 0, 0)
        assert now.pending_compute_s == pytest.approx(0.0, abs=1e-6)
        assert now.context_tokens == pytest.approx(0.0, abs=1e-6)
        assert now.iterations_per_s == 0.0


@given(EVENTS)
def test_every_fact_told_twice_is_as_if_told_once(events: list[Event]):
    once, twice, reference = LoadView(), LoadView(), Reference()
    now_s = 0.0
    for event in events:
        now_s += event[-1]
        apply(event, once, reference, now_s)
        for _ in range(2):
            apply(event, twice, reference, now_s)
        for instance in INSTANCES:
            assert at(once, instance) == at(twice, instance)


@given(EVENTS, st.sets(st.integers(0, REQUESTS - 1)))
def test_whatever_is_not_streamed_all_requests_are_somewhere_and_in_the_end_nothing_is_left(
    events: list[Event], unstreamed: set[int]
):
    load, reference = LoadView(), Reference()
    now_s = 0.0
    for event in events:
        now_s += event[-1]
        apply(event, load, reference, now_s, streamed=event[1] not in unstreamed)
        assert len(load) == len(reference.known)
        for instance in INSTANCES:
            requests, now = reference.at(instance), at(load, instance)
            told = sum(each.decoding for each in requests)
            assert now.pending + now.decoding == len(requests) and now.decoding >= told
            assert 0 <= now.pending_tokens <= sum(each.uncached_tokens for each in requests)
            assert now.pending_compute_s >= 0.0 and now.context_tokens >= 0.0
    for number in range(REQUESTS):
        load.ended(f"r{number}", ATTEMPTS, now_s + 1.0)
    for instance in INSTANCES:
        now = at(load, instance)
        assert (now.pending, now.decoding, now.pending_tokens) == (0, 0, 0)
        assert now.context_tokens == pytest.approx(0.0, abs=1e-6)
