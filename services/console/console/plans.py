"""The plan of replicas as FleetMind tells it over HTTP, and how it is shown."""

import aiohttp
from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.table import Table

from tokenfleet.contracts.control import DemandForecast, Plan
from tokenfleet.errors import UnavailableError


async def read_plan(session: aiohttp.ClientSession, base_url: str) -> Plan:
    """The plan that the FleetMind at an address knows.

    Raises:
        UnavailableError: it does not answer, has no plan (and says why), or one that cannot be read.
    """
    try:
        async with session.get(f"{base_url.rstrip('/')}/v1/plan") as response:
            if response.status == 503:
                raise UnavailableError(str((await response.json())["error"]))
            response.raise_for_status()
            return Plan.model_validate_json(await response.read())
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnavailableError(f"FleetMind at {base_url} does not answer: {error or 'too slow'}.") from error
    except (ValidationError, ValueError, KeyError) as error:
        raise UnavailableError(
            f"FleetMind's plan cannot be read: {error}. Is it of another version?"
        ) from error


def render(plan: Plan, now_ns: int) -> RenderableType:
    """What each pool should be and why, what is forecast, and what nobody could serve."""
    pools = Table("site", "pool", "now", "warming", "wanted", "prewarm", "planned for", "reason")
    for pool in plan.pools:
        wanted = str(pool.wanted) if pool.wanted == pool.now else f"[bold]{pool.wanted}[/]"
        pools.add_row(
            pool.site,
            pool.pool,
            str(pool.ready),
            str(pool.warming),
            wanted,
            str(pool.prewarm),
            f"{pool.work:.2f} of {pool.bears:.2f}",
            pool.reason,
        )
    forecasts = Table(
        "entry", "model", "may run at", "ahead", "forecast", "upper", "error", "'as now'", "form"
    )
    for one in plan.forecasts:
        forecasts.add_row(*_row(one))
    missing = [
        f"[red]Not served:[/] {one.work:.2f} of {one.model} that enters at {one.site}: {one.reason}"
        for one in plan.unserved
    ]
    return Group(
        _heading(plan, now_ns),
        pools if plan.pools else "No pool is known.",
        *missing,
        forecasts if plan.forecasts else "Nothing was asked for yet.",
    )


def _heading(plan: Plan, now_ns: int) -> str:
    age_s = max(0.0, (now_ns - plan.time_ns) / 1e9)
    mode = (
        "[yellow]Dry run: nothing is scaled by it[/] (policy fleet.scaling.dry_run)"
        if plan.dry_run
        else "In force: KEDA is told what is wanted"
    )
    return f"Planned {age_s:.0f} s ago at site {plan.site} for {', '.join(plan.covers)}. {mode}."


def _row(one: DemandForecast) -> tuple[str, ...]:
    return (
        one.site,
        one.model,
        "anywhere" if one.sites is None else ", ".join(one.sites),
        f"{one.horizon_s / 60:.0f} min",
        f"{one.expected:.2f}",
        f"{one.upper:.2f}",
        _share(one.error),
        _share(one.naive_error),
        one.form,
    )


def _share(error: float | None) -> str:
    return "unknown" if error is None else f"±{error:.0%}"
