"""The plan over HTTP, as KEDA's `metrics-api` scaler and `tokenfleet plan` read it. Every replica answers, from what it heard."""

from collections.abc import Callable

from aiohttp import web

from fleetmind.policy.planning.planner import PLAN_EVERY_S
from tokenfleet.contracts.control import Plan

OLD_AFTER_S = 3 * PLAN_EVERY_S
"""A plan is said again with every interval: this one's planner is gone, or cut off."""


class PlanPage:
    """The latest plan that covers this site.

    Args:
        site: this one.
        wall_s: the clock.
        why_none: why nothing was planned here yet.
    """

    def __init__(self, site: str, wall_s: Callable[[], float], why_none: Callable[[], str]) -> None:
        self._site = site
        self._wall_s = wall_s
        self._why_none = why_none
        self._heard_s = 0.0
        self.latest: Plan | None = None

    def heard(self, plan: Plan) -> None:
        """A plan was told, here or elsewhere."""
        if self._site in plan.covers:
            self.latest, self._heard_s = plan, self._wall_s()

    def add_to(self, app: web.Application) -> None:
        """Answer at /v1/plan and /v1/plan/POOL."""
        app.router.add_get("/v1/plan", self._whole)
        app.router.add_get("/v1/plan/{pool}", self._of_pool)

    async def _whole(self, _: web.Request) -> web.Response:
        plan, problem = self._fresh()
        return web.json_response(text=plan.model_dump_json()) if plan else _error(503, problem)

    async def _of_pool(self, request: web.Request) -> web.Response:
        plan, problem = self._fresh()
        if plan is None:
            return _error(503, problem)
        name = request.match_info["pool"]
        pools = {pool.pool: pool for pool in plan.pools if pool.site == self._site}
        if name not in pools:
            known = ", ".join(sorted(pools)) or "none"
            return _error(404, f"The plan has no pool {name} at site {self._site}. It has: {known}.")
        pool = pools[name]
        body = {
            "pool": name,
            "site": self._site,
            "replicas": pool.now if plan.dry_run else pool.wanted,
            "current": pool.now,
            "dry_run": plan.dry_run,
            "reason": pool.reason,
        }
        return web.json_response(body)

    def _fresh(self) -> tuple[Plan | None, str]:
        if self.latest is None:
            return None, f"There is no plan for site {self._site} yet: {self._why_none()}"
        age_s = self._wall_s() - self._heard_s
        if age_s > OLD_AFTER_S:
            return None, (
                f"The latest plan for site {self._site}, by site {self.latest.site}, is {age_s:.0f} s old: "
                f"nobody has planned since. {self._why_none()}"
            )
        return self.latest, ""


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
