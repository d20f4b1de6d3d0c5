"""Reading what a stream holds from a moment on, without a durable consumer and without taking anything out."""

import contextlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tokenfleet.errors import UnavailableError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
    sequence: int
    """Its position in the stream."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """What was stored from a moment on, Unix ns; the server looks at microseconds."""

    unix_ns: int

    def options(self) -> dict[str, Any]:
        """Of a consumer that begins there."""
        start = EPOCH + timedelta(microseconds=self.unix_ns // 1_000)
        return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": start}


@dataclass(frozen=True, slots=True)
class FromSequence:
    """This message of the stream and what follows."""

    sequence: int

    def options(self) -> dict[str, Any]:
        """Of a consumer that begins there."""
        return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": max(1, self.sequence)}


Begin = FromTime | FromSequence


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream holds now."""

    messages: int
    first_ns: int
    """When the stream took its first message, by the server's clock."""
    last_ns: int
    """The same of its last one."""
    last_sequence: int
    """Of the last message that it ever took; 0: none."""
    created: str
    """When the stream was set up: another time means that sequences began anew."""


async def read_stored(
    client: Client, stream: str, subjects: Sequence[str], begin: Begin, batch: int = BATCH
) -> AsyncGenerator[Stored, None]:
    """The messages of some subjects from a point on, oldest first, up to those there now.

    Args:
        client: connected.
        stream: to read.
        subjects: of the messages wanted.
        begin: from where.
        batch: how many are fetched at once: so many are read for nothing when the caller stops early.

    Raises:
        UnavailableError: NATS does not answer, or there is no such stream.
    """
    js = client.jetstream()
    config = ConsumerConfig(
        name=f"reader-{secrets.token_hex(8)}",
        ack_policy=AckPolicy.NONE,
        **begin.options(),
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
                messages = await subscription.fetch(min(batch, left), timeout=BATCH_TIMEOUT_S)
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
    # The reply subject ends in `<stream seq>.<consumer seq>.<ns>.<pending>`, and in one token more on newer servers,
    # which have two more in front as well.
    parts = message.reply.split(".")
    first = 7 if len(parts) >= 11 else 5
    return Stored(message.subject, message.data, int(parts[first + 2]), left, int(parts[first]))


async def stream_state(client: Client, stream: str) -> StreamState:
    """What a stream holds now.

    Raises:
        UnavailableError: NATS does not answer, or there is no such stream.
    """
    try:
        reply = await client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=5.0)
        info = msgspec.json.decode(reply.data, type=_Info)
    except (NatsError, TimeoutError, msgspec.DecodeError) as error:
        raise UnavailableError(f"stream {stream} cannot be read: {error!r}") from error
    state = info.state
    return StreamState(
        state.messages, _unix_ns(state.first_ts), _unix_ns(state.last_ts), state.last_seq, info.created
    )


class _State(msgspec.Struct):
    messages: int
    first_ts: str
    last_ts: str
    last_seq: int


class _Info(msgspec.Struct):
    created: str
    state: _State


def _unix_ns(timestamp: str) -> int:
    """Of `2026-05-04T09:00:00.123456789Z`; datetime alone would drop the last digits."""
    whole, _, fraction = timestamp.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 10**9 + int(fraction.ljust(9, "0"))
