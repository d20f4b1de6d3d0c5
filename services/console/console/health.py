"""What ingress says of the fleet."""

import contextlib
from typing import Any

import aiohttp


async def read_health(session: aiohttp.ClientSession, api_url: str) -> dict[str, Any] | None:
    """What ingress says of itself and the fleet; None when it does not answer 200 with JSON."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with session.get(f"{api_url}/health") as response:
            if response.status == 200:
                return await response.json()
    return None


def ready_instances(health: dict[str, Any]) -> int:
    """How many engine instances ingress could send a request to."""
    instances = health.get("instances")
    return int(instances.get("ready", 0)) if isinstance(instances, dict) else 0  # pyright: ignore
