"""What one decision costs, per decision: TokenPilot's choice of an instance, SLOMax's admission."""

import random
import time

import pytest
from fleets import request, view

from slomax.policy.admission import Admit, Refuse, decide
from slomax.policy.classify import classify, objective_for
from tokenfleet.blocks import pack, unpack
from tokenfleet.contracts.policy import Policy
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView
from tokenpilot.policy.choose import choose
from tokenpilot.policy.prefix_index import PrefixIndex

PROMPT_BLOCKS = 200
IN_FLIGHT = 100
CACHED_BLOCKS = 5_000
"""Held by each instance besides its share of the prompt."""
DECISION = {"timer": time.process_time, "min_time": 0.01, "max_time": 0.5}


def pool(size: int) -> list[InstanceView]:
    return [view(f"instance-{number:02d}") for number in range(size)]


def busy(instances: list[InstanceView]) -> LoadView:
    """In flight over all instances: every other request decodes, the rest wait for their prefill."""
    load = LoadView()
    for number in range(IN_FLIGHT):
        name = instances[number % len(instances)].record.instance
        load.routed(f"r{number}", 1, name, 4_000 + 97 * number, 64 * number, 0.0)
        if number < IN_FLIGHT // 2:
            load.first_token(f"r{number}", 0.5)
    return load


def filled(instances: list[InstanceView], prompt: list[int]) -> PrefixIndex:
    """Each instance holds a different part of the prompt's beginning, and blocks of other prompts."""
    index, draw = PrefixIndex(), random.Random(7)
    for number, instance in enumerate(instances, start=1):
        name = instance.record.instance
        index.store(name, prompt[: PROMPT_BLOCKS * number // len(instances)])
        index.store(name, (draw.getrandbits(64) for _ in range(CACHED_BLOCKS)))
    return index


@pytest.mark.benchmark(group="decision: TokenPilot", **DECISION)
@pytest.mark.parametrize("size", [8, 64])
def test_choosing_an_instance(benchmark, size):
    instances, draw = pool(size), random.Random(1)
    prompt = [draw.getrandbits(64) for _ in range(PROMPT_BLOCKS)]
    asked = request(PROMPT_BLOCKS * 64, blocks=pack(prompt))
    index, load = filled(instances, prompt), busy(instances)

    choice = benchmark(lambda: choose(asked, instances, index.match(unpack(asked.blocks)), load, 1.0))

    assert choice is not None and len(choice.candidates) == size
    assert max(candidate.reused_tokens for candidate in choice.candidates) == PROMPT_BLOCKS * 64


@pytest.mark.benchmark(group="decision: SLOMax", **DECISION)
@pytest.mark.parametrize("size", [8, 64])
def test_admitting_a_request(benchmark, size):
    instances, policy = pool(size), Policy()
    asked, load = request(PROMPT_BLOCKS * 64), busy(instances)

    def admit():
        promise = objective_for(classify(asked, policy)[0], asked, policy)
        return decide(asked, promise, instances, load, 1.0, wait_share_of_slack=policy.wait_share_of_slack)

    assert isinstance(benchmark(admit), Admit | Refuse)
