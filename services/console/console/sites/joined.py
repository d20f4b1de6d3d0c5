"""Waiting until a site's NATS reaches the other sites'."""

import asyncio

import nats
from nats.errors import Error as NatsError

from tokenfleet import subjects
from tokenfleet.errors import UnavailableError
from tokenfleet.settings import Settings

TIMEOUT_S = 20.0
POLL_S = 0.1
REPLY_S = 1.0


async def until_joined(settings: Settings) -> None:
    """Return once every other site's JetStream answers.

    Raises:
        UnavailableError: one does not within twenty seconds.
    """
    password = settings.nats_password
    client = await nats.connect(
        settings.nats_url,
        user=settings.nats_user,
        password=password.get_secret_value() if password else None,
        inbox_prefix=f"_INBOX_{settings.nats_user}",
    )
    missing = set(settings.fleet_sites) - {settings.site}
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while missing:
                for site in sorted(missing):
                    try:
                        await client.request(f"{subjects.domain_api(site)}.INFO", timeout=REPLY_S)
                        missing.discard(site)
                    except (NatsError, TimeoutError):
                        await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise UnavailableError(
            f"Site {settings.site} does not reach {', '.join(sorted(missing))} within {TIMEOUT_S:g} s. The logs of "
            "the exchanges say why."
        ) from error
    finally:
        await client.close()
