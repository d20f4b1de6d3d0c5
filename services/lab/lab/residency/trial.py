"""One world run to its end: what was decided, and whether anything would have gone where it may not."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from lab.residency.world import REGIONS, TENANTS, world
from lab.sim.simulator import Progress, Simulation
from lab.sim.tokenfleet_policy import TokenFleetPolicy
from tokenfleet.contracts.policy import Policy, Tenant

RESIDENCY = ("region_unknown", "region_not_permitted", "site_not_permitted", "tenant_unknown")
"""Reasons of refusals that say so."""
BY_NAME = {tenant.tenant: tenant for tenant in TENANTS}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one world, or of several."""

    requests: int = 0
    bound: int = 0
    """Of tenants that may not run everywhere."""
    placed: int = 0
    """Decisions of FleetMind for a site; a request may be placed several times."""
    placed_elsewhere: int = 0
    """Of these, for another site than the request's entry."""
    bound_elsewhere: int = 0
    """Of these, of bound requests."""
    placed_wrongly: int = 0
    """Decisions of FleetMind for a site where the request may not run."""
    residency_violations: int = 0
    """Decisions to send a request to an instance where it may not run."""
    completed: int = 0
    refused_for_residency: int = 0
    refused_otherwise: int = 0
    failed: int = 0
    cuts: int = 0
    late: int = 0
    restarts: int = 0
    deaths: int = 0


def trial(seed: int, requests: int, on_progress: Progress | None = None) -> Trial:
    """The `seed`-th world. Every other one refuses nothing for want of capacity, so that more is diverted."""
    drawn = world(seed, requests)
    placed: Counter[tuple[str, str, str]] = Counter()
    policy = TokenFleetPolicy(
        seed,
        Policy(admission=seed % 2 == 0),
        drawn.faults,
        on_placed=lambda arrival, placement: placed.update(
            [(arrival.tenant, arrival.spec.entry_site, placement.site)]
        ),
    )
    result = Simulation(drawn.cluster, drawn.work, policy, on_progress=on_progress).run()
    rejected = [outcome for outcome in result.outcomes if outcome.outcome == "rejected"]
    for_residency = sum(outcome.reason in RESIDENCY for outcome in rejected)
    away = {key: count for key, count in placed.items() if key[1] != key[2]}
    return Trial(
        requests=len(drawn.work),
        bound=sum(is_bound(BY_NAME[submission.tenant]) for submission in drawn.work),
        placed=placed.total(),
        placed_elsewhere=sum(away.values()),
        bound_elsewhere=sum(count for (tenant, *_), count in away.items() if is_bound(BY_NAME[tenant])),
        placed_wrongly=sum(
            count for (tenant, _, site), count in placed.items() if not may_run(BY_NAME[tenant], site)
        ),
        residency_violations=result.residency_violations,
        completed=sum(outcome.outcome == "completed" for outcome in result.outcomes),
        refused_for_residency=for_residency,
        refused_otherwise=len(rejected) - for_residency,
        failed=sum(outcome.outcome in ("failed", "timed_out") for outcome in result.outcomes),
        cuts=len(drawn.faults.cuts),
        late=len(drawn.faults.late),
        restarts=len(drawn.faults.restarts),
        deaths=len(drawn.cluster.failures),
    )


def added(trials: Iterable[Trial]) -> Trial:
    """All of them together."""
    total: Counter[str] = Counter()
    for one in trials:
        total.update(msgspec.structs.asdict(one))
    return Trial(**total)


def is_bound(tenant: Tenant) -> bool:
    return tenant.sites is not None or tenant.regions is not None


def may_run(tenant: Tenant, site: str) -> bool:
    """By the facts of the world, not by the rule that is on trial."""
    if tenant.sites is not None and site not in tenant.sites:
        return False
    return tenant.regions is None or REGIONS[site] in tenant.regions
