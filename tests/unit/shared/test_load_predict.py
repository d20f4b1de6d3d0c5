"""What a request would meet at an instance, against arithmetic by hand and against the engine model."""

import random
from statistics import median

import msgspec
import numpy as np
import pytest
from fleets import PROFILE, record, state
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import at, decode, met, ttft_s

from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.profile import prefill_s
from tokenfleet.engine.requests import EngineRequest, FirstToken
from tokenfleet.load import LoadView, predict

BLOCK = 64


class TestByHand:
    def test_on_an_idle_instance_only_the_own_prefill_counts(self):
        load = LoadView()
        assert ttft_s(load, tokens=4_096) == pytest.approx(prefill_s(PROFILE, 4_096, 0))
        assert ttft_s(load, tokens=4_096, reused=2_048) == pytest.approx(prefill_s(PROFILE, 2_048, 2_048))

    def test_a_request_waits_for_every_prefill_ahead_of_it(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_192, 0, 0.0)
        load.routed("r2", 1, "a", 8_192, 0, 0.0)
        waited_s = ttft_s(load) - ttft_s(LoadView())
        assert waited_s == pytest.approx(2 * prefill_s(PROFILE, 8_192, 0), rel=0.02)

    def test_time_passing_works_off_the_head_of_the_queue_but_never_all_of_it(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_192, 0, 0.0)
        whole_s, alone_s = prefill_s(PROFILE, 8_192, 0), ttft_s(LoadView())
        assert ttft_s(load, now_s=whole_s / 2) == pytest.approx(alone_s + whole_s / 2, rel=0.02)
        assert alone_s < ttft_s(load, now_s=1000.0) < alone_s + 0.1 * whole_s

    def test_after_its_first_token_a_request_only_slows_the_steps(self):
        load = LoadView()
        load.routed("r1", 1, "a", 8_000, 0, 0.0)
        load.first_token("r1", 1.0)
        alone_s = ttft_s(LoadView())
        assert alone_s < ttft_s(load, now_s=1.0) < alone_s + 0.1

    def test_restoring_offloaded_blocks_takes_its_time_and_beats_computing_them(self):
        profile = msgspec.structs.replace(PROFILE, restore_s_per_token=5e-6)
        load = LoadView()
        load.joined(record("a", profile=profile))
        cached, restored = (
            float(met(load, tokens=20_000, reused=16_000, offloaded=offloaded).ttft_s[0])
            for offloaded in (0, 16_000)
        )
        assert restored == pytest.approx(cached + 16_000 * 5e-6)
        assert restored < ttft_s(load, tokens=20_000)

    def test_prompts_that_fit_in_one_iteration_share_its_cost(self):
        load = LoadView()
        for number in range(8):
            load.routed(f"r{number}", 1, "a", 100, 0, 0.0)
        assert met(load).backlog_s[0] == pytest.approx(prefill_s(PROFILE, 8 * 100, 0), rel=0.02)

    def test_tokens_come_slower_the_more_there_decode_and_the_longer_their_contexts(self):
        few, many, long = LoadView(), LoadView(), LoadView()
        for load, count, tokens in ((few, 2, 1_000), (many, 50, 1_000), (long, 50, 8_000)):
            for number in range(count):
                decode(load, f"r{number}", tokens=tokens)
        tpot_s = [float(met(load).tpot_s[0]) for load in (LoadView(), few, many, long)]
        assert tpot_s == sorted(tpot_s) and len(set(tpot_s)) == 4

    def test_at_least_one_token_is_computed_however_much_is_cached(self):
        assert ttft_s(LoadView(), tokens=640, reused=640) == ttft_s(LoadView(), tokens=640, reused=639) > 0


def busy(draw: random.Random, instances: int) -> LoadView:
    """Instances of different speeds with something of everything going on."""
    load = LoadView()
    for number in range(instances):
        name = f"i{number}"
        load.set_factors(name, draw.uniform(0.8, 1.2), draw.uniform(0.8, 1.2))
        for request in range(draw.randrange(8)):
            load.routed(f"{name}.{request}", 1, name, draw.randrange(100, 20_000), 64, draw.random())
            if draw.random() < 0.6:
                load.first_token(f"{name}.{request}", 1.0 + draw.random())
        if draw.random() < 0.5:
            counts = {"waiting": draw.randrange(4), "running": draw.randrange(9), "kv_usage": draw.random()}
            load.reading(state(name, **counts), 2.0, 2.0)
    return load


@pytest.mark.parametrize("seed", range(5))
def test_many_instances_at_once_are_as_one_by_one(seed: int):
    draw = random.Random(seed)
    load = busy(draw, 20)
    names = [f"i{number}" for number in range(20)]
    reused = np.array([draw.randrange(5_000) for _ in names], dtype=float)
    offloaded = reused / 2
    together = predict(load.table, load.slots(names), 6_000, reused, offloaded, 3.0)
    for position, name in enumerate(names):
        alone = met(load, name, 6_000, reused=reused[position], offloaded=offloaded[position], now_s=3.0)
        for column in (
            "ttft_s",
            "backlog_s",
            "own_prefill_s",
            "tpot_s",
            "own_compute_s",
            "step_s",
            "chunk_s",
        ):
            assert getattr(together, column)[position] == pytest.approx(getattr(alone, column)[0], rel=1e-12)


SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 60_000), st.data())
def test_more_cached_tokens_never_predict_a_later_first_token(seed: int, tokens: int, data: st.DataObject):
    load = busy(random.Random(seed), 1)
    fewer, more = sorted(data.draw(st.tuples(st.integers(0, tokens), st.integers(0, tokens))))
    assert ttft_s(load, "i0", tokens, reused=more, now_s=3.0) <= (
        ttft_s(load, "i0", tokens, reused=fewer, now_s=3.0) + 1e-9
    )


@given(SEEDS, st.integers(1, 60_000), st.integers(1, 60_000))
def test_more_pending_work_never_predicts_an_earlier_first_token(seed: int, tokens: int, more: int):
    load = busy(random.Random(seed), 1)
    before = met(load, "i0", tokens, now_s=3.0)
    load.routed("more", 1, "i0", more, 0, 3.0)
    # Where no prompt is pending, half a step stands for the rest of the iteration under way.
    slack_s = float(before.step_s[0]) / 2 if at(load, "i0").pending == 1 else 0.0
    assert ttft_s(load, "i0", tokens, now_s=3.0) >= float(before.ttft_s[0]) - slack_s - 1e-9


@given(SEEDS, st.integers(1, 60_000))
def test_the_parts_add_up_and_none_is_negative_or_endless(seed: int, tokens: int):
    load = busy(random.Random(seed), 3)
    found = predict(load.table, load.slots([f"i{n}" for n in range(3)]), tokens, 0.0, 0.0, 3.0)
    assert (
        np.isfinite(found.ttft_s).all() and (found.backlog_s >= 0).all() and (found.own_prefill_s > 0).all()
    )
    assert (found.ttft_s >= found.backlog_s + found.own_prefill_s).all()
    assert (found.tpot_s > found.step_s).all()


def relative_errors(
    seed: int, *, arrivals: int, interval_s: float, streamed_share: float = 1.0
) -> list[float]:
    """A random load given to the engine model and to a load view: how far the predicted TTFTs were off.

    The view hears of first tokens of the streamed share only.
    """
    draw, silent = random.Random(seed), random.Random(seed + 1)
    engine, load = EngineModel(PROFILE, BLOCK), LoadView()
    load.joined(record("a"))
    predicted: dict[str, float] = {}
    arrived: dict[str, float] = {}
    streamed: set[str] = set()
    errors: list[float] = []

    def follow(until_s: float) -> None:
        for event in engine.advance(until_s):
            if isinstance(event, FirstToken):
                if event.request_id in streamed:
                    load.first_token(event.request_id, event.time_s)
                actual_s = event.time_s - arrived[event.request_id]
                errors.append(abs(predicted[event.request_id] / actual_s - 1.0))
            else:
                load.ended(event.request_id, 1, event.time_s, event.output_tokens)

    now_s = 0.0
    for number in range(arrivals):
        now_s += draw.expovariate(1.0 / interval_s)
        follow(now_s)
        name = f"r{number}"
        tokens = round(min(max(draw.lognormvariate(8.0, 1.0), 64), 40_000))
        output_tokens = draw.randrange(2, 400)
        predicted[name], arrived[name] = ttft_s(load, tokens=tokens, now_s=now_s), now_s
        engine.add(EngineRequest(request_id=name, prompt_tokens=tokens, output_tokens=output_tokens), now_s)
        is_streamed = silent.random() < streamed_share
        if is_streamed:
            streamed.add(name)
        load.routed(name, 1, "a", tokens, 0, now_s, streamed=is_streamed)
    follow(now_s + 1000.0)
    assert len(errors) == arrivals and len(load) == 0
    return errors


class TestAgainstTheEngineModel:
    @pytest.mark.parametrize(
        ("load", "interval_s"), [("light", 3.0), ("moderate", 0.8), ("heavy: the queue grows", 0.35)]
    )
    def test_the_median_error_of_ttft_is_at_most_15_percent(self, load: str, interval_s: float):
        errors = [
            error for seed in range(5) for error in relative_errors(seed, arrivals=40, interval_s=interval_s)
        ]
        assert median(errors) <= 0.15

    @pytest.mark.parametrize("streamed_share", [0.5, 0.0])
    @pytest.mark.parametrize(
        ("load", "interval_s"), [("light", 3.0), ("moderate", 0.8), ("heavy: the queue grows", 0.35)]
    )
    def test_it_holds_where_first_tokens_are_not_told(
        self, load: str, interval_s: float, streamed_share: float
    ):
        errors = [
            error
            for seed in range(5)
            for error in relative_errors(
                seed, arrivals=40, interval_s=interval_s, streamed_share=streamed_share
            )
        ]
        assert median(errors) <= 0.15

    @settings(max_examples=30)
    @given(SEEDS)
    def test_it_holds_for_any_small_load(self, seed: int):
        draw = random.Random(seed)
        errors = relative_errors(seed, arrivals=draw.randrange(6, 20), interval_s=draw.uniform(0.3, 3.0))
        assert median(errors) <= 0.25, "of so few"

    def test_tokens_out_follow_the_engine(self):
        engine, load = EngineModel(PROFILE, BLOCK), LoadView()
        for number in range(12):
            name = f"r{number}"
            engine.add(EngineRequest(request_id=name, prompt_tokens=2_000, output_tokens=5_000), 0.0)
            load.routed(name, 1, "a", 2_000, 0, 0.0)
        for event in engine.advance(30.0):
            load.first_token(event.request_id, event.time_s)
        load.expire(0.0, 30.0)
        decode(load, "now", tokens=1, now_s=30.0)
        requests, there = load.table.requests(load.slots(["a"]))
        expected = at(load).iterations - requests.first_iteration[there][:12] + 1
        assert expected.tolist() == pytest.approx(
            [engine.produced_tokens(f"r{number}") for number in range(12)], rel=0.05
        )
