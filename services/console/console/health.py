"""What the services of a running stack say of themselves and of the fleet."""

import contextlib
import re
from pathlib import Path
from typing import Any

import aiohttp

_STARTED = re.compile(rb'"admin": "\(\'([^\']+)\', (\d+)')


async def read_health(session: aiohttp.ClientSession, base_url: str) -> dict[str, Any] | None:
    """What a service says at /health; None when it does not answer 200 with JSON."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with session.get(f"{base_url}/health") as response:
            if response.status == 200:
                return await response.json()
    return None


def admin_url(log: Path) -> str | None:
    """Where a service answers that listens on any free port: as it says in its log when it starts."""
    try:
        started = _STARTED.findall(log.read_bytes())
    except OSError:
        return None
    if not started:
        return None
    host, port = started[-1]
    return f"http://{host.decode()}:{port.decode()}"


def ready_instances(health: dict[str, Any]) -> int:
    """How many engine instances ingress could send a request to."""
    instances = health.get("instances")
    return int(instances.get("ready", 0)) if isinstance(instances, dict) else 0  # pyright: ignore
