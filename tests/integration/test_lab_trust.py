"""The simulator against what it stands for: an engine in real time, and another project's simulator."""

from pathlib import Path

import pytest

from lab.traces.load import open_trace
from lab.traces.model import Trace, TraceRequest, blocks_in
from lab.trust.agreement import agreement
from lab.trust.dynamo_compare import BAR, Comparison
from lab.trust.dynamo_replay import ENVIRONMENT, installed
from lab.trust.engine_compare import compare_engine

TIME_SCALE = 2.0
TRIES = 3
"""Another process may disturb one measurement; what the simulator gets wrong, it gets wrong each time."""


def busy_trace() -> Trace:
    """Prompts that keep one engine just busy, every third of them repeating the beginning of the one before."""
    requests: list[TraceRequest] = []
    for index in range(30):
        input_tokens = (4_000, 9_000, 14_000, 2_000, 7_000)[index % 5]
        first = 1_000 * (index - index % 3)
        shared = range(first, first + 4)
        own = range(1_000 * index + 500, 1_000 * index + 500 + blocks_in(input_tokens))
        requests.append(
            TraceRequest(
                arrival_s=0.7 * index,
                input_tokens=input_tokens,
                output_tokens=(10, 60, 25)[index % 3],
                block_ids=(*shared, *own)[: blocks_in(input_tokens)],
            )
        )
    return Trace(source="busy", format="made", requests=tuple(requests))


async def test_an_engine_in_real_time_and_the_simulator_agree_on_the_same_requests():
    found = await compare_engine(busy_trace(), 1.0, TIME_SCALE)
    for _ in range(TRIES - 1):
        if not found.agreement.agrees:
            found = await compare_engine(busy_trace(), 1.0, TIME_SCALE)
    assert found.measured.answered == found.simulated.answered == 30
    assert found.simulated.prefix_reuse > 0.05
    if not found.agreement.agrees and not found.timely:
        late_ms = found.disturbance_s * 1000
        pytest.skip(f"this machine is too busy to keep time: late by {late_ms:.0f} ms of engine time")
    assert found.agreement.agrees, found.agreement


@pytest.mark.skipif(not installed(), reason=f"NVIDIA Dynamo's replay is not in {ENVIRONMENT} (make dynamo)")
def test_dynamos_replay_and_the_simulator_agree_where_queues_form(tmp_path: Path):
    comparison = Comparison(open_trace("generated", 600), tmp_path, workers=2)
    result = comparison.at_speed(3.0, policies=("round_robin", "dynamo_kv"))
    assert result.dynamo["round_robin"].ttft_p95_s > 4.0, "queues form"
    assert result.agreement.agrees, result.agreement

    router = agreement(result.dynamo["kv_router"], result.ours["dynamo_kv"], BAR)
    assert router.agrees, "the baseline named after Dynamo's router routes as it does"
