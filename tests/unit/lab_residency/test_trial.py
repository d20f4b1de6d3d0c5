"""Residency while everything fails at once: nothing leaves, and something would be noticed if it did."""

import pytest
from click.testing import CliRunner

from fleetmind.policy import eligibility
from lab.residency.command import residency
from lab.residency.trial import added, may_run, trial
from lab.residency.world import REGIONS, TENANTS, world

REQUESTS = 500


def test_whatever_fails_nothing_runs_or_is_placed_where_its_tenant_does_not_allow_it() -> None:
    total = added(trial(seed, REQUESTS) for seed in range(2))
    assert total.placed_wrongly == total.residency_violations == 0
    # It says nothing if nothing bound was ever sent elsewhere, or nothing went wrong.
    assert min(total.bound_elsewhere, total.refused_for_residency, total.completed) > 50
    assert min(total.cuts, total.late, total.restarts, total.deaths) > 0


def test_a_fleetmind_that_ignored_residency_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eligibility, "refusal", lambda *_: None)
    found = trial(0, REQUESTS)
    assert found.placed_wrongly > 0 and found.residency_violations > 0


def test_a_world_is_drawn_from_its_seed_alone() -> None:
    assert world(3, 50) == world(3, 50) != world(4, 50)


def test_where_tenants_may_run_is_judged_by_where_sites_really_are() -> None:
    allowed = {tenant.tenant: {site for site in REGIONS if may_run(tenant, site)} for tenant in TENANTS}
    assert allowed["eu"] == {"A", "B"} and allowed["eu-at-b-or-c"] == {"B"}
    assert allowed["us-at-e"] == allowed["nowhere"] == set()
    assert allowed["anywhere"] == set(REGIONS)


def test_the_command_shows_what_happened_and_ends_well_only_without_violations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fine = CliRunner().invoke(residency, ["--requests", "150", "--processes", "1"])
    assert fine.exit_code == 0 and "residency violations" in fine.output
    monkeypatch.setattr(eligibility, "refusal", lambda *_: None)
    broken = CliRunner().invoke(residency, ["--requests", "150", "--processes", "1", "--first-seed", "7"])
    assert broken.exit_code == 1 and "seeds requests left: 7" in broken.output
