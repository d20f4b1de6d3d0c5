"""What one client gets: the engine's answer whole, a stream of its events, or an error."""

import asyncio
import contextlib

from aiohttp import web

from ingress.errors import ApiError
from ingress.policy.happenings import Finish
from ingress.policy.lifecycle import Lifecycle
from ingress.upstream import EngineAnswer

LAST_WORDS_S = 2.0
"""How long a client may take to read the end of a stream that failed."""


class ClientAnswer:
    """The answer to one request, begun at most once.

    Args:
        life: of the request.
        client: who asked; None for a request of this process's own, whose answer is never streamed.
    """

    def __init__(self, life: Lifecycle, client: web.Request | None) -> None:
        self._life = life
        self._client = client
        self._whole: web.Response | None = None
        self._stream: web.StreamResponse | None = None
        self._has_said_error = False

    @property
    def internal(self) -> bool:
        """Whether this process asks for it itself, for a batch."""
        return self._client is None

    @property
    def streaming(self) -> bool:
        """Whether a stream has begun: from then on nobody else can answer."""
        return self._stream is not None

    def keep(self, answer: EngineAnswer, body: bytes, instance: str) -> None:
        """An engine's whole answer, to be given when the request has ended well."""
        headers = self._headers(instance) | _content_type(answer)
        self._whole = web.Response(body=body, status=answer.status, headers=headers)

    async def begin_stream(self, answer: EngineAnswer, instance: str) -> None:
        """Send the head of a stream; `write` follows.

        Raises:
            ConnectionResetError: the client has gone.
        """
        assert self._client is not None
        headers = self._headers(instance) | _content_type(answer) | {"cache-control": "no-cache"}
        stream = web.StreamResponse(headers=headers)
        await stream.prepare(self._client)
        self._stream = stream

    async def write(self, events: bytes, *, says_error: bool = False) -> None:
        """Send events of the stream that has begun; `says_error`: one of them tells that it failed.

        Raises:
            ConnectionResetError: the client has gone.
        """
        assert self._stream is not None
        self._has_said_error = self._has_said_error or says_error
        if events:
            await self._stream.write(events)

    async def end(self, finish: Finish) -> web.StreamResponse:
        """Say how the request ended, as far as that has not been said."""
        ended = finish.ended
        error = ApiError(ended.status, finish.message, code=ended.reason, retry_after_s=finish.retry_after_s)
        if self._stream is not None:
            with contextlib.suppress(ConnectionResetError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    if ended.outcome != "completed" and not self._has_said_error:
                        await self._stream.write(error.sse_event())
                    await self._stream.write_eof()
            return self._stream
        if self._whole is not None and ended.outcome in ("completed", "rejected"):
            return self._whole
        headers = self._headers(ended.instance) | error.headers
        # 499 says what became of it; nobody is there to read the answer.
        return web.Response(
            body=error.body(), status=ended.status, headers=headers, content_type="application/json"
        )

    def _headers(self, instance: str | None) -> dict[str, str]:
        life = self._life
        headers = {"x-request-id": life.request_id}
        if instance is not None:
            headers["x-tokenfleet-site"] = life.site
            headers["x-tokenfleet-instance"] = instance
            headers["x-tokenfleet-pool"] = life.pool
            headers["x-tokenfleet-attempt"] = str(life.attempt)
        if life.queue_wait_s is not None:
            headers["x-tokenfleet-queue-wait-s"] = f"{life.queue_wait_s:.3f}"
        return headers


def _content_type(answer: EngineAnswer) -> dict[str, str]:
    return {"content-type": answer.headers.get("content-type", "application/json")}
