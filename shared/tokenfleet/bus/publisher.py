"""Acknowledged JetStream publishes through one inbox and a bounded window.

nats-py's `js.publish` waits for each acknowledgement; one inbox subscription with a future per message lets
many publishes be under way at once, in order, for less CPU than as many concurrent `js.publish` calls
(measured, docs/adr/0004).
"""

import asyncio
import itertools
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from tokenfleet.bus.flush import flush
from tokenfleet.errors import UnavailableError


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: dict[str, Any] | None = None


class PublishWindow:
    """At most `size` publishes wait for their acknowledgement at once; more callers queue."""

    def __init__(self, client: Client, size: int = 2000) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(size)
        self._tokens = itertools.count()
        self._waiting: dict[str, asyncio.Future[_Ack]] = {}
        self._inbox = ""

    async def start(self) -> None:
        """Subscribe the inbox that acknowledgements arrive on."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_ack)
        await flush(self._client)

    async def _on_ack(self, message: Msg) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is None or future.done():
            return
        if message.headers and message.headers.get("Status") == "503":
            future.set_exception(UnavailableError("no JetStream stream takes this subject"))
        else:
            future.set_result(msgspec.json.decode(message.data, type=_Ack))

    async def publish(self, subject: str, data: bytes, headers: dict[str, str], timeout_s: float) -> bool:
        """Publish once and wait for the acknowledgement. True if the stream already had this message id.

        Raises:
            UnavailableError: no acknowledgement in time, or JetStream refused the message.
        """
        async with self._slots:
            token = str(next(self._tokens))
            future: asyncio.Future[_Ack] = asyncio.get_running_loop().create_future()
            self._waiting[token] = future
            try:
                await self._client.publish(subject, data, reply=f"{self._inbox}.{token}", headers=headers)
                async with asyncio.timeout(timeout_s):
                    ack = await future
            except TimeoutError as error:
                raise UnavailableError(f"no acknowledgement from JetStream within {timeout_s} s") from error
            finally:
                del self._waiting[token]
        if ack.error:
            raise UnavailableError(
                f"JetStream refused the message: {ack.error.get('description', ack.error)}"
            )
        return ack.duplicate
