"""Mooncake's conductor: predicted TTFT by hand (0.1 ms a token), and both early rejections."""

import pytest
from unit.lab_baselines.small_fleet import arrival, fleet, prompt, routed_to, send

from lab.baselines.mooncake_conductor import MooncakeConductor
from lab.sim.api import Refuse, Route
from tokenfleet.contracts.policy import ClassObjective, Policy


def test_the_least_queue_plus_own_prefill_wins() -> None:
    router = fleet(MooncakeConductor(0), "ab")
    send(router, "a", "r1", 10_000)
    send(router, "b", "r2", 11_000)
    cached = prompt(("p", 20))
    router.blocks("b", cached, (), 0.0)
    # a: 1.0 + 1,600 tokens; b: 1.1 + 320 tokens.
    decision = router.decide(arrival("r3", blocks=(*cached, *prompt(("q", 5)))), 0.0)
    assert decision == Route("b", pytest.approx(1.1 + 320e-4))


def test_a_queue_shrinks_as_time_passes_and_is_corrected_by_a_first_token() -> None:
    router = fleet(MooncakeConductor(0), "a")
    send(router, "a", "r1", 10_000)
    send(router, "a", "r2", 10_000)
    assert router.decide(arrival("r3", 1_000), 0.5) == Route("a", pytest.approx(1.5 + 0.1))
    router.first_token("r1", "a", 1.4)  # 0.4 s late; 1.1 s of prefill are left
    decision = router.decide(arrival("r4", 1_000), 1.4)
    assert isinstance(decision, Route)
    assert decision.predicted_ttft_s == pytest.approx(1.0 + 0.1 + 0.1 + 0.001, abs=2e-3)


def test_refused_when_the_best_ttft_misses_its_objective() -> None:
    router = fleet(MooncakeConductor(0), "ab")
    send(router, "a", "r1", 40_000)
    send(router, "b", "r2", 45_000)
    assert router.decide(arrival("r3", 1_000), 0.0) == Refuse(429, "prefill_load"), "4.1 s against 4 s"
    assert routed_to(router.decide(arrival("r4", 1_000), 0.2)) == "a"


def test_refused_when_the_decodes_expected_then_miss_theirs() -> None:
    promises = Policy(objectives={"interactive": ClassObjective(ttft_s=10.0, tpot_s=0.003)})
    router = fleet(MooncakeConductor(0, promises), "a")
    for i in range(3):
        send(router, "a", f"r{i}", 100)
        router.first_token(f"r{i}", "a", 0.0)
    assert router.decide(arrival("r3", 100), 0.0) == Refuse(429, "decode_load"), "4 ms a step with it"
    router.ended("r0", "a", 100, 1.0)  # so a decode takes 1 s
    assert router.decide(arrival("r4", 100), 1.0) == Route("a", pytest.approx(0.01, abs=3e-3)), (
        "the others leave by then"
    )


def test_a_class_without_such_objectives_is_never_refused() -> None:
    router = fleet(MooncakeConductor(0), "a")
    send(router, "a", "r1", 100_000)
    assert routed_to(router.decide(arrival("r2", 100_000, task="batch"), 0.0)) == "a"
