"""KV buckets, and watching them in a way that survives a NATS restart.

A watcher listens on the bucket's subject for live changes and lists the whole bucket at the start, after
every reconnect and every `RELIST_S`: what expired or changed meanwhile is then noticed too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoKeysError
from nats.js.kv import KeyValue

if TYPE_CHECKING:
    from tokenfleet.bus.connection import Bus

log = structlog.get_logger(__name__)

RELIST_S = 15.0
OnChange = Callable[[str, bytes | None], None]


class Bucket:
    """One KV bucket. Values are bytes; revisions allow compare-and-set."""

    def __init__(self, bus: "Bus", name: str, kv: KeyValue) -> None:
        self._bus = bus
        self._kv = kv
        self.name = name

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """`(value, revision)`, or None when there is no such key."""
        try:
            entry = await self._kv.get(key)
        except KeyNotFoundError:
            return None
        return entry.value or b"", entry.revision or 0

    async def put(self, key: str, value: bytes) -> int:
        """Set a key; returns its revision."""
        return await self._kv.put(key, value)

    async def create(self, key: str, value: bytes) -> int | None:
        """Set a key that does not exist; its revision, or None when it exists."""
        try:
            return await self._kv.create(key, value)
        except KeyWrongLastSequenceError:
            return None

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Set a key if it is still at `revision`; the new revision, or None when it is not."""
        try:
            return await self._kv.update(key, value, last=revision)
        except KeyWrongLastSequenceError:
            return None

    async def delete(self, key: str) -> None:
        await self._kv.delete(key)

    async def items(self) -> dict[str, bytes]:
        """Every key with its value."""
        found: dict[str, bytes] = {}
        watcher = await self._kv.watch(">", ignore_deletes=True, inactive_threshold=5.0)
        try:
            async with asyncio.timeout(5.0):
                async for entry in watcher:
                    if entry is None:
                        break
                    found[entry.key] = entry.value or b""
        except NoKeysError:
            pass
        finally:
            await watcher.stop()
        return found

    async def watch(self, on_change: OnChange) -> None:
        """Call `on_change(key, value)` for every key now and whenever one changes; value None: it is gone.

        Returns once the present content has been reported. The same value may be reported again.
        """
        known: set[str] = set()
        prefix = f"$KV.{self.name}."

        async def on_message(message: Msg) -> None:
            key = message.subject[len(prefix) :]
            operation = (message.headers or {}).get("KV-Operation")
            if operation in ("DEL", "PURGE"):
                known.discard(key)
                on_change(key, None)
            else:
                known.add(key)
                on_change(key, message.data)

        async def relist() -> None:
            items = await self.items()
            for key in known - items.keys():
                known.discard(key)
                on_change(key, None)
            for key, value in items.items():
                known.add(key)
                on_change(key, value)

        await self._bus.subscribe_raw(f"{prefix}>", on_message)
        await relist()
        self._bus.spawn(self._relist_forever(relist))

    async def _relist_forever(self, relist: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._bus.wait_reconnected(RELIST_S)
            try:
                await relist()
            except (NatsError, TimeoutError) as error:
                log.warning("bucket cannot be listed; trying again", bucket=self.name, error=repr(error))
                await asyncio.sleep(0.5)
