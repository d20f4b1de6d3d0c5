"""What operators can see and do at the agent's admin endpoint."""

import math
from typing import Any

from aiohttp import web

from node_agent.agent import NodeAgent
from node_agent.engine import Engine


def health(agent: NodeAgent) -> dict[str, Any]:
    """The engines, for /health."""
    return {"engines": {name: _summary(engine) for name, engine in sorted(agent.engines.items())}}


def add_routes(app: web.Application, agent: NodeAgent) -> None:
    """`POST /drain/<instance>` takes an engine out of routing, `DELETE` takes it in again."""

    async def set_draining(request: web.Request) -> web.Response:
        instance = request.match_info["instance"]
        engine = agent.engines.get(instance)
        if engine is None:
            known = ", ".join(sorted(agent.engines)) or "none"
            message = f"this node has no engine {instance!r}; it has: {known}"
            return web.json_response({"error": message}, status=404)
        engine.draining = request.method == "POST"
        await agent.update_registry()
        return web.json_response({"instance": instance, "draining": engine.draining})

    app.router.add_post("/drain/{instance}", set_draining)
    app.router.add_delete("/drain/{instance}", set_draining)


def _summary(engine: Engine) -> dict[str, Any]:
    age_s = engine.scrape_age_s
    summary: dict[str, Any] = {
        "url": engine.spec.url,
        "pool": engine.record.pool,
        "generation": engine.generation,
        "reachable": engine.reachable,
        "listed": engine.listed,
        "draining": engine.draining,
        "scrape_age_s": round(age_s, 3) if math.isfinite(age_s) else None,
    }
    if engine.stream is not None:
        summary |= {
            "kv_blocks": len(engine.index),
            "kv_offloaded_blocks": engine.index.offloaded,
            "kv_sequence": engine.index.sequence,
            "kv_complete": engine.index.complete,
        }
    return summary
