"""What was weighed for a placement, as the event that says so has it. Pure."""

from collections import Counter
from collections.abc import Sequence
from math import inf

from fleetmind.policy.cost import Estimate
from fleetmind.policy.eligibility import Ineligible
from tokenfleet.contracts.requests import Weighed

MOST_SHOWN = 12
"""Pools that an event names; of all others it says how many were out for which reason."""


def weighed(
    estimates: Sequence[Estimate], out: Sequence[Ineligible]
) -> tuple[tuple[Weighed, ...], dict[str, int]]:
    """The pools, cheapest first, then those without a cost; and how many were out, by reason.

    Args:
        estimates: of the pools that may serve the request.
        out: pools that were not chosen from in the end, and why; of those with a cost too.
    """
    reasons = {(one.pool.site, one.pool.name): one.reason for one in out}
    shown = [_with_cost(one, reasons) for one in estimates]
    known = {(one.site, one.pool) for one in shown}
    shown.sort(key=lambda one: inf if one.cost_s is None else one.cost_s)
    shown += [
        Weighed(site=site, pool=pool, out=reason)
        for (site, pool), reason in reasons.items()
        if (site, pool) not in known
    ]
    return tuple(shown[:MOST_SHOWN]), dict(Counter(reasons.values()))


def _with_cost(one: Estimate, reasons: dict[tuple[str, str], str]) -> Weighed:
    return Weighed(
        site=one.pool.site,
        pool=one.pool.name,
        cost_s=one.cost_s,
        predicted_ttft_s=one.ttft_s,
        way_s=one.way_s,
        work_s=one.work_s,
        reused_tokens=one.reused_tokens,
        out=reasons.get((one.pool.site, one.pool.name)),
    )
