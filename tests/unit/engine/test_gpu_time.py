"""GPU-seconds that requests are estimated to have taken."""

import msgspec
import pytest

from tokenfleet.engine.gpu_time import decode_gpu_s, prefill_gpu_s
from tokenfleet.engine.profile import LLAMA70B_TP4_H100 as ENGINE
from tokenfleet.engine.profile import iteration_s


def test_an_iteration_full_of_one_prompt_takes_all_gpus_of_the_engine() -> None:
    budget = ENGINE.iteration_budget_tokens
    assert prefill_gpu_s(ENGINE, budget, 1_000) == pytest.approx(
        4 * iteration_s(ENGINE, 0, 0, [(budget, 1_000)])
    )


def test_a_usual_batch_of_decodes_shares_its_iteration() -> None:
    batch = ENGINE.max_running_requests // 4
    assert batch * decode_gpu_s(ENGINE, 1, 5_000) == pytest.approx(
        4 * iteration_s(ENGINE, batch, batch * 5_000.5)
    )


def test_what_was_cached_is_cheaper_than_what_is_computed_and_twice_the_gpus_cost_twice() -> None:
    assert prefill_gpu_s(ENGINE, 1_000, 9_000) < prefill_gpu_s(ENGINE, 10_000, 0)
    twice = msgspec.structs.replace(ENGINE, gpus=8)
    assert prefill_gpu_s(twice, 500, 0) == pytest.approx(2 * prefill_gpu_s(ENGINE, 500, 0))
