"""The scenarios that come with the lab, and files of one's own."""

from pathlib import Path

import msgspec
import pytest

from lab.errors import ScenarioError
from lab.scenarios.load import find_trace, load_scenario, names, profile_of
from lab.scenarios.model import Death
from lab.scenarios.setting import cluster_of, workload_of
from lab.sim.experiment import (
    Experiment,
    find_speed,
    load_trace,
    run_bound,
    run_experiment,
    run_policy,
)
from lab.traces.load import open_trace
from tokenfleet.engine.profile import LLAMA70B_TP4_H100

ASKED_FOR = [
    "routing",
    "offload",
    "agents",
    "overload",
    "mixed",
    "hetero",
    "stale",
    "burst",
    "failure",
    "profile_error",
    "drift",
    "multisite",
    "entry",
    "overload18",
    "overload22",
    "flood",
    "flood_quiet",
    "mixed_alone",
    "mixed_batch",
]


def test_all_the_scenarios_asked_for_are_there() -> None:
    assert set(ASKED_FOR) <= set(names())


@pytest.mark.parametrize("name", ASKED_FOR)
def test_every_scenario_runs_and_accounts_for_every_request(name: str) -> None:
    scenario = load_scenario(name)
    experiment = Experiment(
        scenario=scenario,
        policies=(),
        trace="generated:chat=3,batch=1",
        requests=60,
        speed=scenario.speed or 1.5,
    )
    speed = find_speed(experiment, lambda *_: None)
    offered = len(workload_of(scenario, load_trace(experiment, 0), speed, 0))
    assert offered >= 60
    for policy in ("tokenfleet", "least_requests"):
        figures = run_policy(experiment, policy, speed, 0)
        ends = ("completed", "rejected", "timed_out", "cancelled", "failed")
        assert sum(figures[end] for end in ends) == figures["offered"] == offered
        assert sum(group["offered"] for group in figures["input_lengths"].values()) == offered
    assert run_bound(experiment, 1.0, 0)["goodput_tokens_per_s"] > 0


def test_offload_has_four_times_the_kv_capacity_and_the_same_speed() -> None:
    scenario = load_scenario("offload")
    profile = profile_of(scenario, scenario.pools[0])
    assert profile.kv_capacity_tokens == 4 * LLAMA70B_TP4_H100.kv_capacity_tokens
    assert profile.prefill_s_per_token == LLAMA70B_TP4_H100.prefill_s_per_token


def test_in_multisite_sessions_enter_at_one_region_each_and_rates_swing_apart() -> None:
    scenario = load_scenario("multisite")
    trace = open_trace("generated", 3_000)
    work = list(workload_of(scenario, trace, 1.0, 0))
    assert [one.number for one in work] == list(range(3_000))
    assert [one.arrival_s for one in work] == sorted(one.arrival_s for one in work)
    entries: dict[int, set[str]] = {}
    for one in work:
        entries.setdefault(one.request.block_ids[1], set()).add(one.entry_site)
    assert all(len(sites) == 1 for sites in entries.values())
    middle_s = work[-1].arrival_s / 2
    early, late = (
        [one for one in work if one.entry_site == "B" and (one.arrival_s < middle_s) == half]
        for half in (True, False)
    )
    quarter_s = middle_s / 2
    first = sum(one.arrival_s < quarter_s for one in early)
    assert first > 1.2 * (len(early) - first), "B's rate is highest at the beginning"
    assert late


def test_in_entry_nothing_enters_where_gpus_are_and_two_fifths_of_the_tenants_stay_in_b() -> None:
    scenario = load_scenario("entry")
    cluster = cluster_of(scenario, seed=0)
    work = list(workload_of(scenario, open_trace("generated", 1_000), 1.0, 0))
    assert {one.entry_site for one in work} == {"A"}
    assert sorted({spec.site for spec in cluster.instances}) == ["B", "C", "D"]
    assert {spec.site for spec in cluster.instances if spec.version == "2"} == {"B", "C"}
    confined = [tenant for tenant in cluster.tenants.values() if tenant.sites == ("B",)]
    assert len(confined) == 8
    assert 0.07 < sum(one.version == "2" for one in work) / len(work) < 0.13
    assert cluster.one_way_s("A", "D") == pytest.approx(0.03)


def test_a_burst_doubles_the_rate_between_two_shares_of_the_run() -> None:
    scenario = load_scenario("burst")
    trace = open_trace("generated:chat?rate=50", 20_000)
    times = [one.arrival_s for one in workload_of(scenario, trace, 1.0, 0)]
    span_s = trace.requests[-1].arrival_s
    in_burst = sum(0.4 * span_s <= time < 0.5 * span_s for time in times) / (0.1 * span_s)
    before = sum(time < 0.4 * span_s for time in times) / (0.4 * span_s)
    assert in_burst / before == pytest.approx(2.0, rel=0.1)


def test_the_overload_is_where_the_target_policy_attains_its_share() -> None:
    scenario = load_scenario("overload")
    experiment = Experiment(scenario=scenario, policies=(), trace="generated", requests=500)
    speed = find_speed(experiment, lambda *_: None)
    attained = run_policy(experiment, "least_requests", speed, 0)["attainment_offered"]
    assert attained == pytest.approx(0.67, abs=0.06)


def test_a_trace_that_is_not_there_is_replaced_by_the_scenarios_generator(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TOKENFLEET_TRACES", str(tmp_path))
    assert find_trace("some.jsonl", "generated:agent") == "generated:agent"
    (tmp_path / "some.jsonl").write_text("{}")
    assert find_trace("some.jsonl", "generated:agent") == str(tmp_path / "some.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 'x'\ndescription = ''\ntrace = 't'\nspeed = 1\npools = [{instance = 3}]", "instance"),
        ("name = 'x'\ndescription = ''\ntrace = 't'\npools = [{instances = 3}]", "speed"),
        (
            "name = 'x'\ndescription = ''\ntrace = 't'\nspeed = 1\npools = [{instances = 3, profile = 'p'}]",
            "p is unknown",
        ),
        ("name = 'x'\ndescription = ''\ntrace = 't'\nspeed = 0\npools = [{instances = 3}]", "speed"),
        ("name = ", "not a scenario"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=said) as raised:
        load_scenario(str(path))
    assert "mine.toml" in str(raised.value)


HEAD = "name = 'x'\ndescription = ''\ntrace = 't'\n"
FLOOD = "flood = {{tenant = '{}', factor = 20, from_share = {}, to_share = 0.5}}\n"
POOL = "[[pools]]\ninstances = 2\nsite = 'B'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed = 1\npools = []\n", "at least one pool"),
        ("speed = inf\n" + POOL, "speed"),
        ("speed = 1e-9\n" + POOL, "speed"),
        (
            "speed = 1\nentry_site = 'A'\nround_trips_ms = {A-b = 5}\n" + POOL,
            "names b, but the sites are A, B",
        ),
        ("speed = 1\nentry_site = 'A'\nround_trips_ms = {AB = 5}\n" + POOL, "between two sites"),
        ("speed = 1\nregions = {sites = []}\n" + POOL, "at least one site"),
        (
            "speed = 1\ntenants = {count = 4, confined_share = 0.5, confined_to = 'b'}\n" + POOL,
            "confined to b, but pools are at B",
        ),
        ("speed = 1\ntelemetry_delay_s = [1.0, 0.05]\n" + POOL, "the least and the most"),
        (
            "speed = 1\nsteps = [{from_share = 0.5, to_share = 0.4, factor = 2}]\n" + POOL,
            "a step ends at 0.4",
        ),
        (
            "speed = 1\nfailures = [{instance = 'B-0', at_s = 9, back_s = 3}]\n" + POOL,
            "back at 3 s, not after it dies at 9 s",
        ),
        (
            "speed = 1\nfailures = [{instance = 'B-0', at_s = 5}, {instance = 'B-0', at_s = 9}]\n" + POOL,
            "dies at 9 s, when it is dead already",
        ),
        (
            "speed = 1\ntenants = {count = 1, weights = [1.0, 2.0]}\n" + POOL,
            "weights for 2 tenants, but 1 tenants",
        ),
        ("speed = 1\n" + FLOOD.format("tenant-1", 0.1) + POOL, "a `flood` needs `tenants`"),
        (
            "speed = 1\ntenants = {count = 2}\n" + FLOOD.format("tenant-2", 0.1) + POOL,
            "tenant-2 is to flood, but the tenants are tenant-0, tenant-1",
        ),
        (
            "speed = 1\ntenants = {count = 2}\n" + FLOOD.format("tenant-1", 0.9) + POOL,
            "the flood ends at 0.5 of the run",
        ),
        (
            "speed = 1\nbatch = {lines_per_request = 1, files = "
            "[{lines_share = 1, from_share = 0.5, due_share = 0.5}]}\n" + POOL,
            "a batch file is due at 0.5 of the run",
        ),
    ],
)
def test_a_scenario_that_contradicts_itself_is_refused_with_what_does_not_fit(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + text)
    with pytest.raises(ScenarioError, match=said) as raised:
        load_scenario(str(path))
    assert "mine.toml" in str(raised.value)


def test_an_unknown_scenario_is_refused_with_those_known() -> None:
    with pytest.raises(ScenarioError, match="routing"):
        load_scenario("rooting")


def test_a_failure_of_an_instance_that_is_not_there_is_refused_with_those_that_are() -> None:
    scenario = load_scenario("failure")
    wrong = msgspec.structs.replace(scenario, failures=(Death(instance="local-9", at_s=1.0),))
    with pytest.raises(ScenarioError, match="local-9 is to fail, but the instances are local-0"):
        cluster_of(wrong, seed=0)


def test_a_block_size_that_does_not_fit_the_trace_is_refused_before_anything_runs() -> None:
    odd = msgspec.structs.replace(load_scenario("routing"), block_size_tokens=48)
    experiment = Experiment(scenario=odd, policies=("round_robin",), trace="generated", requests=10)
    with pytest.raises(ScenarioError, match="choose a block size"):
        run_experiment(experiment, "", lambda *_: None)
