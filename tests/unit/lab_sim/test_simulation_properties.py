"""Whatever arrives and whatever fails: what must always hold of a simulation."""

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_worlds import Watcher, cluster, submission

from lab.sim.cluster import Failure
from lab.sim.figures import ledger_rows, policy_figures
from lab.sim.policies import make_policy
from lab.sim.simulator import Result, Simulation
from lab.sim.workload import Submission
from tokenfleet.contracts.policy import Policy

REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(1, 14_000),
        st.integers(1, 200),
        st.integers(0, 3),
        st.sampled_from([0.5, 5.0, 600.0]),
    ),
    min_size=1,
    max_size=25,
)
FAILURES = st.lists(
    st.tuples(st.sampled_from(["i0", "i1"]), st.floats(0, 8), st.one_of(st.none(), st.floats(0.1, 5))),
    max_size=1,
)

Requests = Sequence[tuple[float, int, int, int, float]]


def work_of(requests: Requests) -> list[Submission]:
    work: list[Submission] = []
    arrival_s = 0.0
    for number, (gap_s, input_tokens, output_tokens, session, timeout_s) in enumerate(requests):
        arrival_s += gap_s
        work.append(
            submission(number, arrival_s, input_tokens, output_tokens, session=session, timeout_s=timeout_s)
        )
    return work


def failures_of(failures: Sequence[tuple[str, float, float | None]]) -> tuple[Failure, ...]:
    return tuple(
        Failure(instance=name, at_s=at_s, back_s=None if away_s is None else at_s + away_s)
        for name, at_s, away_s in failures
    )


def watched(requests: Requests, failures: Sequence[tuple[str, float, float | None]]) -> Result:
    return Simulation(cluster(failures=failures_of(failures)), work_of(requests), Watcher()).run()


@settings(max_examples=60, deadline=None)
@given(REQUESTS, FAILURES)
def test_every_request_has_exactly_one_outcome_and_none_ends_before_it_arrived(requests, failures) -> None:
    result = watched(requests, failures)
    assert [outcome.arrival.request_id for outcome in result.outcomes] == [
        f"r{number}" for number in range(len(requests))
    ]
    for outcome in result.outcomes:
        assert outcome.ended_s >= outcome.arrival.time_s
        assert outcome.ttft_s is None or 0 < outcome.ttft_s <= outcome.ended_s - outcome.arrival.time_s


@settings(max_examples=60, deadline=None)
@given(REQUESTS, FAILURES)
def test_tokens_are_conserved_between_engines_outcomes_and_ledger(requests, failures) -> None:
    result = watched(requests, failures)
    assert result.generated_tokens == sum(outcome.output_tokens for outcome in result.outcomes)
    for outcome, (_, input_tokens, output_tokens, _, _) in zip(result.outcomes, requests, strict=True):
        if outcome.outcome == "completed":
            assert outcome.output_tokens == min(output_tokens, 12_288 - input_tokens)
        assert outcome.output_tokens <= output_tokens
        assert outcome.reused_tokens < input_tokens
    rows = ledger_rows(result.outcomes, Policy())
    assert result.generated_tokens == sum(
        row.good_output_tokens + row.wasted_output_tokens + row.neutral_output_tokens for row in rows
    )


@settings(max_examples=15, deadline=None)
@given(REQUESTS, FAILURES, st.sampled_from(["tokenfleet", "random", "least_requests"]), st.integers(0, 3))
def test_the_same_seed_gives_the_same_bytes(requests, failures, name, seed) -> None:
    def run() -> bytes:
        simulation = Simulation(
            cluster(failures=failures_of(failures)), work_of(requests), make_policy(name, seed)
        )
        return msgspec.json.encode(policy_figures(simulation.run(), Policy()))

    assert run() == run()
