"""Reading what a stream holds from a moment on, without a durable consumer and without taking anything out."""

import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tokenfleet.errors import UnavailableError

BATCH = 2_000
BATCH_TIMEOUT_S = 10.0
FORGOTTEN_AFTER_S = 30.0
"""How long the server keeps the consumer of a reader that was killed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One message as the stream holds it."""

    subject: str
    data: bytes
    time_ns: int
    """When the stream took it, by the server's clock, at microsecond resolution."""
    left: int
    """How many more there are."""


async def read_stored(
    client: Client, stream: str, subjects: Sequence[str], from_ns: int
) -> AsyncIterator[Stored]:
    """The messages of some subjects stored from a moment on, oldest first, up to those there now.

    Raises:
        UnavailableError: NATS does not answer, or there is no such stream.
    """
    js = client.jetstream()
    config = ConsumerConfig(
        name=f"reader-{secrets.token_hex(8)}",
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_TIME,
        opt_start_time=datetime.fromtimestamp(from_ns / 1e9, UTC),
        filter_subjects=list(subjects),
        inactive_threshold=FORGOTTEN_AFTER_S,
        mem_storage=True,
    )
    try:
        info = await js.add_consumer(stream, config)
        subscription = await js.pull_subscribe_bind(info.name, stream=stream)
    except (NatsError, TimeoutError) as error:
        raise UnavailableError(f"stream {stream} cannot be read: {error!r}") from error
    left = info.num_pending or 0
    try:
        while left > 0:
            try:
                messages = await subscription.fetch(min(BATCH, left), timeout=BATCH_TIMEOUT_S)
            except (NatsError, TimeoutError) as error:
                raise UnavailableError(f"stream {stream} stopped answering: {error!r}") from error
            for message in messages:
                left -= 1
                yield _stored(message, left)
    finally:
        with contextlib.suppress(NatsError, TimeoutError):
            await subscription.unsubscribe()
            await js.delete_consumer(stream, info.name)


def _stored(message: Msg, left: int) -> Stored:
    # The reply subject ends in `<ns>.<pending>`, or in one token more on newer servers.
    parts = message.reply.split(".")
    time_ns = int(parts[9 if len(parts) >= 11 else 7])
    return Stored(message.subject, message.data, time_ns, left)
