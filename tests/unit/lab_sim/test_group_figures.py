"""Figures of parts of the requests, over all offered and over those admitted."""

from collections.abc import Iterable

import msgspec
from sim_worlds import Watcher, cluster, submission

from lab.sim.api import Arrival, Decision, Refuse, Released
from lab.sim.figures import Observed, policy_figures, spread
from lab.sim.simulator import Simulation
from tokenfleet.contracts.policy import Policy


class Refuser(Watcher):
    """Serves all but some tenants, and long prompts after a wait of 5 s."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self._refused = refused

    def decide(self, arrival: Arrival, now_s: float) -> Decision:
        if arrival.tenant in self._refused:
            return Refuse(429, f"no_{arrival.tenant}")
        return super().decide(arrival, now_s)

    def release(self, now_s: float) -> Iterable[Released]:
        return ()


def _work(tenants: int = 3, input_tokens: int = 1_000):
    return [
        msgspec.structs.replace(submission(n, n * 1.0, input_tokens), tenant=f"tenant-{n % tenants}")
        for n in range(2 * tenants)
    ]


def _figures(policy: Refuser, tenants: int = 3, observed: Observed = Observed()):  # noqa: B008 - frozen
    return policy_figures(Simulation(cluster(), _work(tenants), policy).run(), Policy(), observed)


def test_what_is_refused_counts_among_the_offered_and_not_among_the_admitted() -> None:
    figures = _figures(Refuser("tenant-0"))
    short = figures["input_lengths"]["4k"]
    assert (short["attainment_offered"], short["attainment_admitted"]) == (4 / 6, 1.0)
    assert short["goodput_tokens_per_s"] == short["output_tokens_per_s"] > 0


def test_refusals_are_told_by_reason_for_all_each_class_and_each_tenant() -> None:
    figures = _figures(Refuser("tenant-0", "tenant-1"))
    assert figures["rejected_by_reason"] == {"no_tenant-0": 2, "no_tenant-1": 2}
    assert figures["classes"]["interactive"]["rejected_by_reason"] == figures["rejected_by_reason"]
    assert figures["tenants"]["tenant-1"]["rejected_by_reason"] == {"no_tenant-1": 2}
    assert figures["tenants"]["tenant-2"]["rejected"] == 0


def test_tenants_are_told_apart_where_there_are_several_and_not_too_many() -> None:
    assert list(_figures(Refuser(), 11)["tenants"])[-2:] == ["tenant-9", "tenant-10"]
    assert _figures(Refuser(), 1)["tenants"] == {}
    assert _figures(Refuser(), 21)["tenants"] == {}


def test_the_others_are_all_tenants_but_the_one_that_floods() -> None:
    others = _figures(Refuser("tenant-0"), observed=Observed(flooding="tenant-0"))["others"]
    assert (others["offered"], others["attainment_offered"]) == (4, 1.0)
    assert "others" not in _figures(Refuser())


def test_the_longest_wait_of_a_long_context_counts_whether_it_was_answered_or_given_up() -> None:
    policy = Policy(long_context_tokens=5_000)
    work = [
        submission(0, 0.0, 1_000, 2_000),
        submission(1, 0.0, 6_000, 5),
        submission(2, 0.1, 11_000, 400, timeout_s=0.5),
    ]
    one = cluster(1)
    run = Simulation(one, work, Watcher()).run()
    waits = [outcome.ttft_s or outcome.ended_s - outcome.arrival.time_s for outcome in run.outcomes[1:]]
    assert policy_figures(run, policy)["starved_s"] == max(waits)
    assert policy_figures(run, Policy())["starved_s"] is None


def test_a_reason_that_a_seed_did_not_have_counts_as_none_there() -> None:
    runs = [
        {"rejected_by_reason": reasons} for reasons in ({"queue_ttl": 3}, {}, {"queue_ttl": 5, "late": 2})
    ]
    combined = spread(runs)
    assert combined["rejected_by_reason"] == {"late": 0.0, "queue_ttl": 3.0}
    assert combined["min"]["rejected_by_reason"] == {"late": 0, "queue_ttl": 0}
