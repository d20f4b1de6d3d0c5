"""One look at an engine's `/metrics`."""

import asyncio

import aiohttp

from node_agent.policy.metrics import Readings, parse
from tokenfleet.errors import UnavailableError


async def scrape(session: aiohttp.ClientSession, base_url: str, timeout_s: float) -> Readings:
    """Read the engine's metrics. An engine that answers but has no such page gives empty readings.

    Raises:
        UnavailableError: no connection, no answer in time, or an error of the engine itself.
    """
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(f"{base_url}/metrics", allow_redirects=False) as response,
        ):
            body = await response.read()
    except TimeoutError as error:
        raise UnavailableError(f"{base_url}/metrics did not answer within {timeout_s} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise UnavailableError(f"{base_url}/metrics: {error}") from error
    if response.status >= 500:
        raise UnavailableError(f"{base_url}/metrics answered {response.status}")
    return parse(body.decode(errors="replace")) if response.status == 200 else Readings()
