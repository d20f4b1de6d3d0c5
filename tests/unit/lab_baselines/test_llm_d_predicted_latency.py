"""llm-d's predicted-latency routing: the gate, the tiers, the scores, and that it learns."""

from random import Random

import numpy as np
import pytest
from unit.lab_baselines.small_fleet import arrival, fleet, prompt, read, routed_to, send

from lab.baselines.llm_d_predicted_latency import LlmDPredictedLatency, gate, headroom_scores
from lab.baselines.regression import WindowedRidge

ALL = np.arange(3)
BUSY = np.array([False, False, False])


def test_the_gate_keeps_those_that_hold_the_prompt() -> None:
    shares = np.array([0.9, 0.0, 0.8])
    assert gate(ALL, shares, np.array([3.0, 1.0, 5.9]), 0.8).tolist() == [0, 2]


def test_the_gate_opens_when_the_holders_are_over_five_seconds_later() -> None:
    shares = np.array([0.9, 0.0, 0.8])
    assert gate(ALL, shares, np.array([6.1, 1.0, 7.0]), 0.8).tolist() == [0, 1, 2]


def test_the_gate_keeps_all_when_nobody_holds_enough() -> None:
    assert gate(ALL, np.array([0.7, 0.0, 0.79]), np.zeros(3), 0.8).tolist() == [0, 1, 2]


def test_least_headroom_scores_highest_by_default_and_most_if_asked() -> None:
    ttft, tpot = np.array([1.0, 2.0, 3.0]), np.array([0.05, 0.01, 0.03])
    kept, scores = headroom_scores(ALL, ttft, tpot, BUSY)
    # 1 - (0.8 * TTFT share + 0.2 * TPOT share): a 0 and 1, b 0.5 and 0, c 1 and 0.5.
    assert kept.tolist() == [0, 1, 2]
    assert scores == pytest.approx([0.8, 0.6, 0.1])
    assert headroom_scores(ALL, ttft, tpot, BUSY, most=True)[1] == pytest.approx([0.2, 0.4, 0.9])


def test_a_dimension_without_range_gives_its_weight_to_the_other() -> None:
    _, scores = headroom_scores(ALL, np.array([1.0, 2.0, 3.0]), np.full(3, 0.02), BUSY)
    assert scores == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("ttft", "tpot", "idle", "kept"),
    [
        ([-1, -1, -1], [-1, -1, -1], [False, True, False], [1]),
        ([1, -1, -1], [-1, 1, -1], [False] * 3, [0]),
        ([-1, -1, -1], [-1, 1, -1], [False] * 3, [1]),
        ([-3, -1, -2], [-1, -1, -1], [False] * 3, [0, 1, 2]),
    ],
    ids=["idle first", "then those that miss only TPOT", "then only TTFT", "then both"],
)
def test_without_positive_headroom_the_least_bad_group(ttft, tpot, idle, kept) -> None:
    group, scores = headroom_scores(ALL, np.array(ttft, float), np.array(tpot, float), np.array(idle))
    assert group.tolist() == kept
    if len(kept) == 3:
        assert scores == pytest.approx([0.0, 1.0, 0.5]), "closest to the objective is best"


def test_before_there_are_predictions_kv_queue_and_prefix_count_alike() -> None:
    router = fleet(LlmDPredictedLatency(0), "ab")
    held = prompt(("p", 5))
    send(router, "b", "r1", blocks=held)
    read(router, "a", waiting=0, kv=0.0)
    read(router, "b", waiting=3, kv=0.1)
    # a: 1 + 1 + 0; b: 0 + 0.9 + 1.
    assert routed_to(router.decide(arrival("r2", blocks=held), 0.0)) == "a"


def test_it_learns_to_avoid_an_instance_that_would_miss() -> None:
    random = Random(0)
    router = fleet(LlmDPredictedLatency(0), "ab")
    for i in range(400):
        name = random.choice("ab")
        ahead = random.randrange(0, 40)
        read(router, name, float(i), waiting=ahead, running=5)
        send(router, name, f"r{i}", 1_000, now_s=float(i))
        router.first_token(f"r{i}", name, i + 0.1 + 0.2 * ahead)
        router.ended(f"r{i}", name, 11, i + 0.3 + 0.2 * ahead)
    read(router, "a", 1_000.0, waiting=35, running=5)  # about 7 s against an objective of 4 s
    read(router, "b", 1_000.0, waiting=2, running=5)
    chosen = [routed_to(router.decide(arrival(f"q{i}", 1_000), 1_000.0)) for i in range(100)]
    assert chosen.count("b") >= 95, "all but about one in a hundred, which explores"


def test_the_ridge_recovers_a_linear_latency_and_is_never_negative() -> None:
    random = np.random.default_rng(0)
    model = WindowedRidge()
    for _ in range(500):
        x = random.uniform(0, 10, 2)
        model.add(x.tolist(), bool(x[0] > 5), 0.3 * x[0] + 0.1 * x[1] + (2 if x[0] > 5 else 0))
    assert not model.ready
    model.fit()
    x = np.array([[1.0, 2.0], [9.0, 1.0], [-50.0, 0.0]])
    predicted = model.predict(x, np.array([False, True, False]))
    assert predicted == pytest.approx([0.5, 4.8, 0.0], abs=0.05)
