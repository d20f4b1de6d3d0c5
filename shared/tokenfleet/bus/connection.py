"""A process's connection to NATS.

A handler runs as a task per message under a limit, so a slow one never blocks the subscription; a
subscription whose order matters runs its handler in line (`ordered=True`). Publishing never waits for the
network except through `publish_acked`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.api import StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import BadRequestError

from tokenfleet.bus.bucket import Bucket, open_bucket
from tokenfleet.bus.codec import Codec, ErrorEnvelope, decode, decode_reply, encode
from tokenfleet.bus.consumer import BatchHandler, PullConsumer
from tokenfleet.bus.flush import flush
from tokenfleet.bus.publisher import PublishWindow
from tokenfleet.bus.reader import FromSequence, FromTime, Stored, StreamState, read_stored, stream_state
from tokenfleet.bus.storage import streams
from tokenfleet.errors import ContractError, TokenFleetError, UnavailableError
from tokenfleet.settings import Settings

log = structlog.get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CONNECT_ATTEMPTS = 40
RECONNECT_WAIT_S = 0.25
DRAIN_S = 2.0
"""How long handlers may take to finish when the process stops."""
MESSAGE_ID = "Nats-Msg-Id"
OPERATOR = "operator"
"""The user that may change streams (infra/nats/permissions.conf)."""
STREAM_DIFFERS = 10058
"""The server's error code for a stream of that name with another configuration."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came with a message besides its content."""

    subject: str
    headers: dict[str, str]


Handler = Callable[[T, Delivery], Awaitable[None]]
RawHandler = Callable[[Msg], Awaitable[None]]
Unsubscribe = Callable[[], Awaitable[None]]


class Bus:
    """Use `Bus.connect`; `drain` before leaving."""

    def __init__(self, client: Client, site: str, sites: Sequence[str]) -> None:
        self._client = client
        self._site = site
        self._sites = sites
        self._window = PublishWindow(client)
        self._background: set[asyncio.Task[Any]] = set()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._subscriptions: set[Subscription] = set()
        self._reconnected = asyncio.Event()
        self.contract_errors = 0
        """Messages dropped because they did not decode."""

    @classmethod
    async def connect(cls, settings: Settings, name: str) -> "Bus":
        """Connect, and make sure the streams and buckets exist.

        Raises:
            UnavailableError: no server answers within about ten seconds, or it refuses the credentials.
        """
        client = Client()
        bus = cls(client, settings.site, settings.fleet_sites)
        user = settings.nats_user
        options: dict[str, Any] = {
            "name": name,
            "max_reconnect_attempts": CONNECT_ATTEMPTS,
            "reconnect_time_wait": RECONNECT_WAIT_S,
            "error_cb": bus._on_error,
            "reconnected_cb": bus._on_reconnect,
            "inbox_prefix": f"_INBOX_{user}" if user else "_INBOX",
            "pending_size": 64 << 20,
        }
        if user:
            password = settings.nats_password
            options |= {"user": user, "password": password.get_secret_value() if password else ""}
        try:
            await client.connect(settings.nats_url, **options)
        except (NatsError, OSError, TimeoutError) as error:
            raise UnavailableError(
                f"NATS at {_without_login(settings.nats_url)} cannot be used: {client.last_error or error}. "
                "Check TOKENFLEET_NATS_URL and TOKENFLEET_NATS_USER, and that the server runs."
            ) from error
        client.options["max_reconnect_attempts"] = -1
        try:
            await bus._window.start()
            await bus._ensure_streams(may_change=user in (None, OPERATOR))
        except BaseException:
            await client.close()
            raise
        return bus

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    async def _on_error(self, error: Exception) -> None:
        log.warning("nats", error=repr(error))

    async def _on_reconnect(self) -> None:
        log.info("nats reconnected")
        self._reconnected.set()
        self._reconnected = asyncio.Event()

    async def wait_reconnected(self, timeout_s: float) -> None:
        """Return after the next reconnect, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._reconnected.wait()

    async def _ensure_streams(self, *, may_change: bool) -> None:
        js = self._client.jetstream()
        for config in streams(self._site, self._sites):
            try:
                await _ensure_stream(js, config, may_change)
            except (NatsError, TimeoutError) as error:
                raise UnavailableError(
                    f"NATS stream {config.name} cannot be set up: {error}. Check that the server runs with "
                    "JetStream enabled, and that this user may create the stream (infra/nats/permissions.conf)."
                ) from error

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a background task, cancelled when the bus drains."""
        _keep(self._background, coroutine)

    # -- publish and subscribe

    async def publish(
        self, subject: str, message: Any, *, codec: Codec = "json", headers: dict[str, str] | None = None
    ) -> None:
        """Publish without acknowledgement; buffered while NATS is away, dropped when the buffer is full."""
        try:
            await self._client.publish(subject, encode(message, codec), headers=headers)
        except NatsError as error:
            log.warning("message dropped", subject=subject, error=repr(error))

    async def publish_acked(
        self,
        subject: str,
        message: Any,
        event_id: str,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> bool:
        """Publish into JetStream and wait until it is stored. True if it was already there.

        Raises:
            UnavailableError: it may not be stored; publishing the same `event_id` again is safe.
        """
        try:
            data = encode(message)
            return await self._window.publish(
                subject, data, {MESSAGE_ID: event_id, **(headers or {})}, timeout_s
            )
        except NatsError as error:
            raise UnavailableError(f"NATS did not take the message: {error!r}") from error

    async def subscribe_raw(self, subject: str, handler: RawHandler, queue: str = "") -> Unsubscribe:
        """Subscribe without decoding; flushed, so that messages published from now on arrive."""
        subscription = await self._client.subscribe(subject, queue=queue, cb=handler)
        self._subscriptions.add(subscription)
        await flush(self._client)

        async def unsubscribe() -> None:
            self._subscriptions.discard(subscription)
            await subscription.unsubscribe()

        return unsubscribe

    async def subscribe(
        self,
        subject: str,
        message_type: type[T],
        handler: Handler[T],
        *,
        queue: str = "",
        codec: Codec = "json",
        ordered: bool = False,
        concurrency: int = 256,
    ) -> None:
        """Call `handler(message, delivery)` for each message; one that does not decode is counted and dropped."""
        slots = asyncio.Semaphore(concurrency)

        async def run(message: T, delivery: Delivery) -> None:
            try:
                await handler(message, delivery)
            except Exception:
                log.exception("handler failed", subject=delivery.subject)
            finally:
                if not ordered:
                    slots.release()

        async def on_message(msg: Msg) -> None:
            try:
                message = decode(msg.data, message_type, codec)
            except ContractError as error:
                self.contract_errors += 1
                log.warning("message dropped", subject=msg.subject, error=str(error))
                return
            delivery = Delivery(msg.subject, dict(msg.headers or {}))
            if ordered:
                await run(message, delivery)
            else:
                await slots.acquire()
                _keep(self._handlers, run(message, delivery))

        await self.subscribe_raw(subject, on_message, queue)

    # -- request and reply

    async def request(self, subject: str, message: Any, reply_type: type[R], timeout_s: float = 2.0) -> R:
        """Ask and wait for the answer.

        Raises:
            UnavailableError: nobody serves the subject, or no answer came in time.
            RemoteError: the handler failed; the error carries its kind and message.
        """
        try:
            reply = await self._client.request(subject, encode(message), timeout=timeout_s)
        except NoRespondersError as error:
            raise UnavailableError(f"nobody answers on {subject}") from error
        except (NatsError, TimeoutError) as error:
            raise UnavailableError(f"no answer on {subject} within {timeout_s} s: {error!r}") from error
        return decode_reply(reply.data, reply_type)

    async def serve(
        self, subject: str, request_type: type[T], handler: Callable[[T], Awaitable[Any]], *, queue: str = ""
    ) -> Unsubscribe:
        """Answer requests with what `handler` returns, or with an error envelope when it raises."""

        async def answer(msg: Msg) -> None:
            try:
                reply = encode(await handler(decode(msg.data, request_type)))
            except TokenFleetError as error:
                envelope = ErrorEnvelope(error_kind=type(error).__name__, error_message=str(error))
                reply = encode(envelope)
            except Exception as error:
                log.exception("handler failed", subject=msg.subject)
                message = f"{type(error).__name__} in {subject}"
                reply = encode(ErrorEnvelope(error_kind="InternalError", error_message=message))
            with contextlib.suppress(NatsError):
                await msg.respond(reply)

        async def on_message(msg: Msg) -> None:
            _keep(self._handlers, answer(msg))

        return await self.subscribe_raw(subject, on_message, queue)

    # -- JetStream

    def consume(
        self,
        stream: str,
        durable: str,
        filters: Sequence[str],
        handler: BatchHandler,
        *,
        batch: int = 500,
        concurrency: int = 1,
    ) -> Coroutine[Any, Any, None]:
        """Pull from a durable consumer for ever, handling batches; spawn what this returns."""
        consumer = PullConsumer(self._client, stream, durable, filters, batch, concurrency=concurrency)
        return consumer.run(handler)

    async def consumer_backlog(self, stream: str, durable: str) -> int:
        """How many of a durable consumer's messages are not acknowledged yet, delivered or not.

        Raises:
            UnavailableError: NATS does not answer, or there is no such consumer.
        """
        try:
            info = await self._client.jetstream().consumer_info(stream, durable)
        except (NatsError, TimeoutError) as error:
            raise UnavailableError(f"consumer {durable} of {stream} cannot be read: {error!r}") from error
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def acknowledged_to(self, stream: str, durable: str) -> int:
        """Up to which sequence of the stream a durable consumer has handled everything that is meant for it.

        Raises:
            UnavailableError: NATS does not answer, or there is no such consumer.
        """
        try:
            info = await self._client.jetstream().consumer_info(stream, durable)
        except (NatsError, TimeoutError) as error:
            raise UnavailableError(f"consumer {durable} of {stream} cannot be read: {error!r}") from error
        return info.ack_floor.stream_seq if info.ack_floor else 0

    async def has_handled(self, stream: str, durable: str, sequence: int) -> bool:
        """Whether a durable consumer has handled all that is meant for it up to a sequence of the stream.

        Raises:
            UnavailableError: NATS does not answer, or there is no such consumer.
        """
        if await self.consumer_backlog(stream, durable) == 0:
            return True
        return await self.acknowledged_to(stream, durable) >= sequence

    async def stream_state(self, stream: str) -> StreamState:
        """How much a stream holds, and from when to when.

        Raises:
            UnavailableError: NATS does not answer, or there is no such stream.
        """
        return await stream_state(self._client, stream)

    def read_stored(self, stream: str, filters: Sequence[str], from_ns: int) -> AsyncGenerator[Stored, None]:
        """What a stream holds of some subjects from a moment on, oldest first, up to now.

        Raises:
            UnavailableError: while iterating: NATS does not answer, or there is no such stream.
        """
        return read_stored(self._client, stream, filters, FromTime(from_ns))

    def read_stored_after(
        self, stream: str, filters: Sequence[str], sequence: int, batch: int
    ) -> AsyncGenerator[Stored, None]:
        """The same of what follows a sequence; `batch` messages are fetched at once.

        Raises:
            UnavailableError: while iterating: NATS does not answer, or there is no such stream.
        """
        return read_stored(self._client, stream, filters, FromSequence(sequence + 1), batch)

    async def bucket(self, name: str) -> Bucket:
        """A KV bucket named in `subjects`, created when missing.

        Raises:
            UnavailableError: it cannot be set up, or is of another kind than this site should have.
        """
        return await open_bucket(self, self._client.jetstream(), name, self._site, self._sites[0])

    async def flush(self) -> None:
        """Return when the server has taken everything published so far."""
        await flush(self._client)

    async def drain(self) -> None:
        """Take no more messages, finish what is being handled, send what is buffered, and close."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        # Handlers answer over the connection, so it is closed last. uvloop raises RuntimeError when the
        # transport of a lost connection is closed again.
        with contextlib.suppress(NatsError, TimeoutError, RuntimeError):
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*(each.drain() for each in self._subscriptions), return_exceptions=True)
                if self._handlers:
                    await asyncio.wait(self._handlers)
                await flush(self._client)
        with contextlib.suppress(NatsError, RuntimeError):
            await self._client.close()


async def _ensure_stream(js: JetStreamContext, config: StreamConfig, may_change: bool) -> None:
    try:
        try:
            await js.add_stream(config)
        except TimeoutError:
            # The server may have been restarted meanwhile: the answer is lost, the connection is there again.
            await js.add_stream(config)
    except BadRequestError as error:
        if error.err_code != STREAM_DIFFERS:
            raise
        # Another version set it up. The operator connects first when a stack starts, and brings it up to date.
        if may_change:
            await js.update_stream(config)
        else:
            log.warning("stream is of another version; any operator command updates it", stream=config.name)


def _without_login(url: str) -> str:
    """An address that may be printed: without the user and password it may hold."""
    scheme, _, rest = url.rpartition("://")
    host = rest.rpartition("@")[2]
    return f"{scheme}://{host}" if scheme else host


def _keep(tasks: set[asyncio.Task[Any]], coroutine: Coroutine[Any, Any, Any]) -> None:
    # The loop holds tasks only weakly, and says nothing of one that failed.
    def done(task: asyncio.Task[Any]) -> None:
        tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed", task=coroutine.__qualname__, exc_info=task.exception())

    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(done)


__all__ = ["Bus", "Codec", "Delivery"]
