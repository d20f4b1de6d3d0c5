"""Waiting until the server has taken what was sent."""

from nats.aio.client import Client


async def flush(client: Client) -> None:
    """Return when the server has processed all subscriptions and messages sent so far.

    nats-py writes the PING of a flush at once, past what its flusher task has still to write, so one round trip says
    nothing of what was sent just before: a request may find nobody though its server has subscribed and flushed. While the
    first PONG is awaited the flusher writes it all, and the second PING comes after that.
    """
    await client.flush()
    await client.flush()
