"""Every policy that can be simulated, by name: TokenFleet's own and the published ones."""

from typing import NamedTuple

from lab.baselines import REGISTRY
from lab.errors import ScenarioError
from lab.sim.api import Policy
from lab.sim.tokenfleet_policy import TokenFleetPolicy
from tokenfleet.contracts import policy as contracts


class Own(NamedTuple):
    """TokenFleet under one live configuration."""

    policy: contracts.Policy
    description: str
    several_sites: bool = False
    """Whether it differs from the others only where there are several sites."""


STAY_LOCAL = "tokenfleet_stay_local"
NEVER_S = 1e9
"""A gain that no other site ever has."""

OURS = {
    "tokenfleet": Own(contracts.Policy(), "TokenFleet's live policies in their default configuration"),
    "tokenfleet_no_admission": Own(
        contracts.Policy(admission=False), "TokenFleet's live policies, refusing nothing"
    ),
    STAY_LOCAL: Own(
        contracts.Policy(admission=False, fleet=contracts.Fleet(stay_local_margin_s=NEVER_S)),
        "the same, each site for itself wherever it has instances",
        several_sites=True,
    ),
}

EVERYWHERE = ("round_robin", "least_requests")
"""Baselines run in every scenario, so that all can be compared."""


def make_policy(name: str, seed: int) -> Policy:
    """A policy for one run; the seed is for all its draws.

    Raises:
        ScenarioError: there is no such policy.
    """
    if name in OURS:
        return TokenFleetPolicy(seed, OURS[name].policy)
    if name not in REGISTRY:
        raise ScenarioError(f"There is no policy {name}. Known: {', '.join(known())}")
    return REGISTRY[name](seed)


def known() -> list[str]:
    """All names, TokenFleet's first."""
    return [*OURS, *REGISTRY]


def fitting(*, several_sites: bool) -> list[str]:
    """Those worth running: the ones that choose sites where there are several, the others where there is one."""
    baselines = [
        name
        for name, baseline in REGISTRY.items()
        if name in EVERYWHERE or baseline.several_sites == several_sites
    ]
    ours = [name for name, own in OURS.items() if several_sites or not own.several_sites]
    return [*ours, *baselines]


def description(name: str) -> str:
    """What a policy is, in a few words."""
    return OURS[name].description if name in OURS else REGISTRY[name].description
