"""What a scenario lets arrive beside its trace: a tenant's flood, batch files, and what a router sees of them."""

from collections import Counter

import msgspec
import pytest

from lab.scenarios.load import load_scenario
from lab.scenarios.setting import cluster_of, step_times_s, workload_of
from lab.sim.workload import Submission, arrival, prompt_blocks
from lab.traces.load import open_trace

TRACE = open_trace("generated", 2_000)


def _work(name: str) -> list[Submission]:
    return list(workload_of(load_scenario(name), TRACE, 1.0, 0))


def test_the_one_tenant_offers_twenty_times_an_equal_share_for_the_middle_half() -> None:
    work = _work("flood")
    span_s = TRACE.requests[-1].arrival_s
    middle = [one for one in work if 0.25 * span_s <= one.arrival_s < 0.75 * span_s]
    offered = Counter(one.tenant for one in middle)
    flooding = offered.pop("tenant-9")
    assert flooding / (offered.total() / 9) == pytest.approx(20, rel=0.15)
    outside = Counter(one.tenant for one in work if one not in middle)
    assert outside["tenant-9"] < 2 * outside.total() / 10


def test_the_other_nine_offer_the_same_requests_at_the_same_times_with_and_without_the_flood() -> None:
    nine = [
        [(one.tenant, one.arrival_s, one.request) for one in _work(name) if one.tenant != "tenant-9"]
        for name in ("flood", "flood_quiet")
    ]
    assert nine[0] == nine[1]


def test_what_floods_shares_no_prompt_with_anybody_else() -> None:
    quiet = {block for one in _work("flood_quiet") for block in one.request.block_ids}
    added = Counter(id for one in _work("flood") for id in one.request.block_ids)
    added.subtract(Counter(id for one in _work("flood_quiet") for id in one.request.block_ids))
    assert not {block for block, count in added.items() if count > 0} & quiet


def test_all_tenants_of_a_flood_are_equal_and_known_to_the_policy() -> None:
    tenants = cluster_of(load_scenario("flood"), 0).tenants
    assert {tenants[f"tenant-{number}"].weight for number in range(10)} == {1.0}


def test_weights_in_a_scenario_reach_the_tenants() -> None:
    scenario = load_scenario("flood")
    assert scenario.tenants is not None
    heavy = msgspec.structs.replace(scenario.tenants, weights=(3.0,))
    tenants = cluster_of(msgspec.structs.replace(scenario, tenants=heavy), 0).tenants
    assert (tenants["tenant-0"].weight, tenants["tenant-1"].weight) == (3.0, 1.0)


def test_batch_files_come_at_the_start_and_their_lines_say_when_they_are_due() -> None:
    span_s = TRACE.requests[-1].arrival_s
    lines = [one for one in _work("mixed") if one.task == "batch"]
    due_s = Counter(round((one.arrival_s + one.timeout_s) / span_s, 6) for one in lines)
    assert len(lines) == 2_500
    assert due_s == {0.5: 875, 1.0: 1_625}
    assert max(one.arrival_s for one in lines) < 0.2 * span_s


def test_a_batch_line_is_told_as_the_batch_api_tells_it_and_others_are_not() -> None:
    work = _work("mixed")
    line = next(one for one in work if one.task == "batch")
    told = arrival(line, "m", 16, ()).spec
    assert (told.task, told.service_tier) == ("batch", "flex")
    assert told.due_ns == told.deadline_ns == round((line.arrival_s + line.timeout_s) * 1e9)
    other = arrival(next(one for one in work if one.task == "chat"), "m", 16, ()).spec
    assert (other.service_tier, other.due_ns) == (None, 0)


def test_with_and_without_batch_the_other_requests_are_the_same_and_share_no_prompt_with_lines() -> None:
    mixed, alone, batch = (_work(name) for name in ("mixed", "mixed_alone", "mixed_batch"))
    others = [(one.arrival_s, one.request) for one in mixed if one.task != "batch"]
    assert others == [(one.arrival_s, one.request) for one in alone]
    assert Counter(one.task for one in batch) == {"batch": 2_500}
    seen = {block for one in alone for block in prompt_blocks(one.request, 16)}
    assert not seen & {block for one in batch for block in prompt_blocks(one.request, 16)}


def test_a_burst_changes_the_load_twice() -> None:
    span_s = TRACE.requests[-1].arrival_s
    assert step_times_s(load_scenario("burst"), TRACE, 2.0) == pytest.approx((0.2 * span_s, 0.25 * span_s))
    assert step_times_s(load_scenario("routing"), TRACE, 2.0) == ()
