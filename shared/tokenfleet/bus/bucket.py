"""KV buckets, and watching them in a way that survives a NATS restart.

A watcher listens on the bucket's subject for live changes and lists the whole bucket at the start, after
every reconnect and every `RELIST_S`: what expired or changed meanwhile is then noticed too.

A bucket that is kept at the fleet's home site is read from this site's mirror of it and written at home, with the
same revisions, so that compare-and-set holds across sites. Cut off from home, it can be read only.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import DeliverPolicy
from nats.js.client import JetStreamContext
from nats.js.errors import (
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
)
from nats.js.errors import Error as JetStreamError
from nats.js.kv import KeyValue

from tokenfleet import subjects
from tokenfleet.bus.storage import BUCKETS, KEPT_AT_HOME, mirror
from tokenfleet.errors import UnavailableError

if TYPE_CHECKING:
    from tokenfleet.bus.connection import Bus

log = structlog.get_logger(__name__)

RELIST_S = 15.0
LIST_TIMEOUT_S = 5.0
LOOK_AGAIN_S = 0.2
"""After which it is known whether a compare-and-set that was heard of was granted."""
OnChange = Callable[[str, bytes | None], None]


class Bucket:
    """One KV bucket. Values are bytes; revisions allow compare-and-set."""

    def __init__(self, bus: "Bus", js: JetStreamContext, name: str, kv: KeyValue, written: KeyValue) -> None:
        self._bus = bus
        self._js = js
        self._kv = kv
        self._written = written
        self._prefix = f"$KV.{name}."
        self.name = name

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """`(value, revision)`, or None when there is no such key."""
        try:
            entry = await self._kv.get(key)
        except KeyNotFoundError:
            return None
        return entry.value or b"", entry.revision or 0

    async def put(self, key: str, value: bytes) -> int:
        """Set a key; returns its revision.

        Raises:
            UnavailableError: the bucket is kept at the fleet's home, which cannot be reached.
        """
        with self._home_answers():
            return await self._written.put(key, value)

    async def create(self, key: str, value: bytes) -> int | None:
        """Set a key that does not exist; its revision, or None when it exists."""
        revision = await self.update(key, value, 0)
        if revision is None and (deleted := await self._deleted_at(key)) is not None:
            revision = await self.update(key, value, deleted)
        return revision

    async def _deleted_at(self, key: str) -> int | None:
        """The revision at which a key was deleted, if it was."""
        try:
            await self._kv.get(key)
        except KeyNotFoundError as error:
            return error.entry.revision if error.entry else None
        return None

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Set a key if it is still at `revision`; the new revision, or None when it is not. Raises as `put`."""
        try:
            with self._home_answers():
                return await self._written.update(key, value, last=revision)
        except KeyWrongLastSequenceError:
            return None

    async def delete(self, key: str) -> None:
        """Take a key away. Raises as `put`."""
        with self._home_answers():
            await self._written.delete(key)

    @contextlib.contextmanager
    def _home_answers(self) -> Iterator[None]:
        try:
            yield
        except (NoStreamResponseError, TimeoutError, NatsTimeoutError) as error:
            if self._written is self._kv:
                raise
            raise UnavailableError(
                f"KV bucket {self.name} is kept at the fleet's home site, which does not answer: it can be read "
                "here, but not changed until the sites are joined again."
            ) from error

    async def items(self) -> dict[str, bytes]:
        """Every key with its value."""
        found: dict[str, bytes] = {}
        reading = await self._js.subscribe(
            f"{self._prefix}>",
            stream=f"KV_{self.name}",
            ordered_consumer=True,
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            inactive_threshold=LIST_TIMEOUT_S,
        )
        try:
            # What the server had sent by now may not have arrived yet, so an empty bucket is told apart by
            # what was sent. (nats-py's own `watch` goes by what arrived, and on a busy machine lists nothing.)
            info = await reading.consumer_info()
            sent = info.delivered.consumer_seq if info.delivered else 0
            left = (info.num_pending or 0) + sent
            async with asyncio.timeout(LIST_TIMEOUT_S):
                while left:
                    message = await reading.next_msg(timeout=LIST_TIMEOUT_S)
                    left = message.metadata.num_pending
                    if not _is_gone(message):
                        found[message.subject[len(self._prefix) :]] = message.data
        finally:
            await reading.unsubscribe()
        return found

    async def watch(self, on_change: OnChange) -> None:
        """Call `on_change(key, value)` for every key now and whenever one changes; value None: it is gone.

        Returns once the present content has been reported. The same value may be reported again.
        """
        known: set[str] = set()
        changed: set[str] = set()
        """Keys heard of since the listing under way began: what it says of them may be old."""

        def report(key: str, value: bytes | None) -> None:
            if value is None:
                known.discard(key)
            else:
                known.add(key)
            on_change(key, value)

        async def on_message(message: Msg) -> None:
            key = message.subject[len(self._prefix) :]
            changed.add(key)
            report(key, None if _is_gone(message) else message.data)
            if _may_be_refused(message):
                self._bus.spawn(self._look_again(key, report))

        async def relist() -> None:
            changed.clear()
            items = await self.items()
            for key in known - items.keys() - changed:
                report(key, None)
            for key, value in items.items():
                if key not in changed:
                    report(key, value)

        await self._bus.subscribe_raw(f"{self._prefix}>", on_message)
        await relist()
        self._bus.spawn(self._relist_forever(relist))

    async def _look_again(self, key: str, report: OnChange) -> None:
        await asyncio.sleep(LOOK_AGAIN_S)
        with contextlib.suppress(NatsError, TimeoutError):  # else the next listing says it
            found = await self.get(key)
            report(key, found[0] if found else None)

    async def _relist_forever(self, relist: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._bus.wait_reconnected(RELIST_S)
            try:
                await relist()
            except (NatsError, TimeoutError) as error:
                log.warning("bucket cannot be listed; trying again", bucket=self.name, error=repr(error))
                await asyncio.sleep(0.5)


async def open_bucket(bus: "Bus", js: JetStreamContext, name: str, site: str, home: str) -> Bucket:
    """A bucket of this site, created when missing: its own, or its mirror of one that is kept at home.

    Raises:
        UnavailableError: it cannot be set up, or is of the other kind.
    """
    if name not in KEPT_AT_HOME or site == home:
        kv = await _own(js, name)
        return Bucket(bus, js, name, kv, kv)
    stream = f"KV_{name}"
    try:
        kv = await js.key_value(name)
        if (await js.stream_info(stream)).config.mirror is None:
            raise UnavailableError(
                f"KV bucket {name} of site {site} is its own, not a copy of site {home}'s: it was set up before the "
                f"site joined the fleet. Keep what you need of it, delete the stream {stream} there, and start again."
            )
    except BucketNotFoundError:
        try:
            await js.add_stream(mirror(name, home))
            kv = await js.key_value(name)
        except JetStreamError as error:
            raise UnavailableError(f"KV bucket {name} cannot be mirrored: {error}") from error
    written = KeyValue(name, stream, f"{subjects.domain_api(home)}.$KV.{name}.", js, direct=True)
    return Bucket(bus, js, name, kv, written)


async def _own(js: JetStreamContext, name: str) -> KeyValue:
    try:
        return await js.key_value(name)
    except BucketNotFoundError:
        try:
            return await js.create_key_value(BUCKETS[name])
        except JetStreamError as error:
            raise UnavailableError(f"KV bucket {name} cannot be set up: {error}") from error


def _may_be_refused(message: Msg) -> bool:
    # Whoever listens on the bucket's subjects hears a compare-and-set as it is asked; a mirror says only what it stored.
    headers = message.headers or {}
    return "Nats-Expected-Last-Subject-Sequence" in headers and "Nats-Stream" not in headers


def _is_gone(message: Msg) -> bool:
    # A key deleted, purged, or expired with a marker left in its place.
    headers = message.headers or {}
    return headers.get("KV-Operation") in ("DEL", "PURGE") or "Nats-Marker-Reason" in headers
