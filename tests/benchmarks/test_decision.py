"""What one decision costs: TokenPilot's, from the ready instances and the prefix index to the choice, and SLOMax's.

CPU time, since wall time says little on a machine that others use (and CPU time is up to twice as long there as on
an idle one). Every decision is for another prompt, and the P99 over them stands in the group's name and in
`extra_info`, beside what it should be at most, the P99 by the wall clock and the machine's load.
"""

import random
import time
from collections.abc import Iterator
from itertools import count

import pytest
from benchmarks.decisions import decide_all
from fleets import POOL, record, request, state

from slomax.policy.classify import entry_of
from slomax.policy.pool import PoolAdmission
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import Objective
from tokenfleet.fleet_view import FleetView
from tokenpilot.policy.pilot import Pilot
from tokenpilot.policy.prefix_index import PrefixIndex
from tokenpilot.policy.roster import roster_of

SIZES = {8: 1.0, 64: 1.0, 1_000: 5.0}
"""Instances, and milliseconds that a decision among them may take (P99)."""

BLOCK_TOKENS, PROMPT_BLOCKS = 64, 200
SYSTEM_PROMPT_BLOCKS, TURN_BLOCKS = 50, 10
CONVERSATIONS = 40
DECODING, PENDING = 30, 2
"""Requests in flight at each instance."""
OBJECTIVE = Objective(ttft_s=4.0, tpot_s=0.1)


class Site:
    """A busy site: every instance holds the system prompt, and some hold a conversation up to one turn or another."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bar = f"{size:,} instances", SIZES[size]
        self.pilot, self.fleet, self.index = Pilot(), FleetView(), PrefixIndex()
        self.now_s = 0.0
        self._rng = rng = random.Random(size)
        self._numbers = count()
        self._system_prompt = [rng.getrandbits(63) for _ in range(SYSTEM_PROMPT_BLOCKS)]
        turns = PROMPT_BLOCKS - SYSTEM_PROMPT_BLOCKS
        self._conversations = [[rng.getrandbits(63) for _ in range(turns)] for _ in range(CONVERSATIONS)]
        for number in range(size):
            self._join(f"i{number:04d}")

    def _join(self, name: str) -> None:
        rng, registered = self._rng, record(name)
        self.fleet.apply_record(name, registered, 0.0)
        self.fleet.apply_state(state(name), 0.0)
        self.pilot.joined(registered)
        self.index.store(name, self._system_prompt)
        for conversation in rng.sample(self._conversations, 5):
            self.index.store(name, conversation[: TURN_BLOCKS * rng.randint(1, 12)])
        for number in range(DECODING + PENDING):
            request_id = f"r{next(self._numbers)}"
            tokens, row = rng.randint(500, 9_000), rng.randint(5, 12)
            self.pilot.load.routed(request_id, 1, name, tokens, 0, 0.0, tpot_objective_s=0.1, length_row=row)
            if number < DECODING:
                self.pilot.load.first_token(request_id, 0.0)

    def prompts(self) -> Iterator[list[int]]:
        """Turns of conversations, each with new blocks of its own at the end."""
        rng = self._rng
        while True:
            known = rng.choice(self._conversations)[: TURN_BLOCKS * rng.randint(0, 14)]
            start = self._system_prompt + known
            yield start + [rng.getrandbits(63) for _ in range(PROMPT_BLOCKS - len(start))]


@pytest.fixture(scope="module", params=SIZES)
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


@pytest.mark.benchmark(timer=time.process_time)
def test_choosing_an_instance(benchmark, site: Site):
    numbers, prompts = count(), site.prompts()

    def one_more():
        number = next(numbers)
        # The load stays as it is: the one before is over.
        site.pilot.ended(f"q{number - 1}", 1, site.now_s, completed=False, output_tokens=0)
        site.now_s = 0.1 + number * 1e-4
        return (f"q{number}", request(PROMPT_BLOCKS * BLOCK_TOKENS), next(prompts)), {}

    def choose(request_id, asked, blocks):
        matched = site.index.match(blocks)
        return site.pilot.decide(
            request_id,
            1,
            asked,
            OBJECTIVE,
            blocks,
            site.fleet.ready(POOL, site.now_s),
            matched,
            site.now_s,
            offloaded_blocks=site.index.offloaded(blocks, matched),
            wall_s=site.now_s,
        )

    decide_all(benchmark, "TokenPilot", *site.bar, one_more, choose)

    decision = choose("last", request(PROMPT_BLOCKS * BLOCK_TOKENS), next(prompts))
    assert decision is not None and decision.choice.considered == site.size
    assert decision.choice.reused_tokens >= SYSTEM_PROMPT_BLOCKS * BLOCK_TOKENS


@pytest.mark.benchmark(timer=time.process_time)
def test_admitting_a_request(benchmark, site: Site):
    policy, tenant = Policy(), Tenant(tenant="acme")
    asked = request(PROMPT_BLOCKS * BLOCK_TOKENS)
    admission = PoolAdmission(site.pilot.load, site.pilot.lengths)

    def admit():
        entry = entry_of("r", 1, asked, tenant, policy, 0.1, 0.1, 60.0)
        verdict = admission.submit(entry, site.fleet.ready(POOL, 0.1), policy, 0.1)
        admission.ended("r", 0.1, completed=False, output_tokens=0, client_left=True)
        return verdict

    decide_all(benchmark, "SLOMax", *site.bar, None, admit)

    admit()
    assert len(admission) == 0


@pytest.mark.benchmark(timer=time.process_time)
def test_finding_out_anew_who_is_ready(benchmark, site: Site):
    """Part of about two decisions a second: until then what was heard of all instances holds."""
    fleet, load = site.fleet, site.pilot.load
    # What is known of a later time does not answer for an earlier one.
    times_s = (0.6 - 1e-6 * number for number in count())

    def find_out():
        return roster_of(fleet.ready(POOL, next(times_s)), load)

    decide_all(benchmark, "Ready instances", *site.bar, None, find_out)

    assert len(find_out().names) == site.size
