"""Another policy or fleet on the same traffic, with bounds."""

from pathlib import Path

import pytest
from unit.lab_whatif.recorded import POOL, compare, run_events, situation, situations

from lab.whatif.errors import WhatIfError
from lab.whatif.resizing import Size
from lab.whatif.whatif import Asked

NAMES = [f"i{number}" for number in range(4)]


@pytest.fixture(scope="module")
def messages():
    return situations([situation(NAMES)]) + run_events()


@pytest.fixture(scope="module")
def round_robin(messages, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("policy") / "round_robin.toml"
    path.write_text('routing = "round_robin"\n')
    return compare(messages, Asked(policy=path, seeds=3, processes=2))


def test_another_policy_gives_a_difference_with_bounds(round_robin):
    assert round_robin.trust.trusted
    assert round_robin.settings == {"routing": ("predicted", "round_robin")}
    reuse = round_robin.difference["prefix_reuse"]
    assert reuse is not None and reuse.low is not None and reuse.high is not None
    assert reuse.low <= reuse.mean <= reuse.high < 0, "round robin scatters conversations"


def test_the_difference_is_what_if_minus_re_run_seed_by_seed(round_robin):
    pairs = zip(round_robin.runs["rerun"], round_robin.runs["what_if"], strict=True)
    differences = [after["goodput_tokens_per_s"] - before["goodput_tokens_per_s"] for before, after in pairs]
    assert len(differences) == 3
    assert round_robin.difference["goodput_tokens_per_s"].mean == pytest.approx(sum(differences) / 3)


def test_a_smaller_fleet_is_slower_and_a_larger_one_is_not(messages):
    smaller = compare(messages, Asked(sizes=[Size(instances=2)], seeds=1, processes=1))
    larger = compare(messages, Asked(sizes=[Size(instances=8, pool=POOL)], seeds=1, processes=1))
    assert smaller.instances == {POOL: (4, 2)}
    assert larger.instances == {POOL: (4, 8)}
    assert smaller.what_if["ttft_p50_s"] > smaller.rerun["ttft_p50_s"] >= larger.what_if["ttft_p50_s"]
    assert smaller.difference["ttft_p50_s"].low is None, "one seed gives no bounds"


def test_objectives_of_another_policy_decide_but_do_not_judge(messages, tmp_path: Path):
    path = tmp_path / "lenient.toml"
    path.write_text("[objectives.interactive]\nttft_s = 400.0\n")
    lenient = compare(messages, Asked(policy=path, sizes=[Size(instances=1)], seeds=1, processes=1))
    assert lenient.settings == {"objectives.interactive.ttft_s": (4.0, 400.0)}
    assert lenient.what_if["attainment_offered"] < lenient.rerun["attainment_offered"]
    assert any("live policy's objectives" in note for note in lenient.notes)


def test_a_pool_that_is_not_there_is_refused_by_name(messages):
    with pytest.raises(WhatIfError, match=f"no pool tiny@v9.*{POOL}"):
        compare(messages, Asked(sizes=[Size(instances=2, pool="tiny@v9")]))
