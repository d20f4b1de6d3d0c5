"""What the plan of replicas keeps to, as the live policy says it."""

import re

import pytest

from tokenfleet.contracts.policy import Fleet, Policy, PoolScaling, Scaling, SiteScaling, problems

M = "llama-3.1@1"


def test_what_a_site_says_of_a_pool_counts_before_what_all_say():
    scaling = Scaling(pools={M: PoolScaling(gpus=4), f"A/{M}": PoolScaling(gpus=8)})
    assert (scaling.of_pool("A", M).gpus, scaling.of_pool("B", M).gpus) == (8, 4)
    assert scaling.of_pool("B", "other@1") == PoolScaling()
    assert scaling.of_site("B") == SiteScaling()


def test_a_fleet_is_planned_for_in_a_dry_run_unless_somebody_says_otherwise():
    assert Policy().fleet.scaling.dry_run


@pytest.mark.parametrize(
    ("scaling", "complaint"),
    [
        (Scaling(pools={"llama": PoolScaling()}), "fleet.scaling.pools.llama: a pool is MODEL@VERSION"),
        (Scaling(pools={f"/{M}": PoolScaling()}), "or SITE/MODEL@VERSION"),
        (Scaling(pools={M: PoolScaling(min=3, max=2)}), r"max \(2\) is less than min \(3\)"),
        (
            Scaling(
                pools={f"A/{M}": PoolScaling(min=3, gpus=4), "A/b@1": PoolScaling(min=1, gpus=8)},
                sites={"A": SiteScaling(gpus=16)},
            ),
            r"fleet.scaling.sites.A: gpus \(16\) is less than the min of its pools take \(20\)",
        ),
        (
            Scaling(
                pools={f"A/{M}": PoolScaling(min=2, memory_gib=640)}, sites={"A": SiteScaling(memory_gib=1)}
            ),
            r"memory_gib \(1\) is less than the min of its pools take \(1280\)",
        ),
    ],
)
def test_what_cannot_be_kept_is_named(scaling: Scaling, complaint: str):
    (problem,) = problems(Policy(fleet=Fleet(scaling=scaling)))
    assert re.search(complaint, problem)
