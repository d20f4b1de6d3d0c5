"""One request over HTTP, as an ordinary client sends it, and what became of it.

The body is read in chunks as they come and never parsed: the figures come from the ledger, and the client
shares its machine with the fleet.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

import aiohttp
import msgspec

from lab.errors import ReplayError
from lab.prompts import PromptWriter
from lab.traces.model import TraceRequest

BUDGET_TOKENS = 2048
"""Clients ask for one round upper bound, so `max_tokens` does not give the answer's length away."""

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0
END_OF_STREAM = b"[DONE]"
TAIL_BYTES = 32
"""Enough of an answer's end to hold its last event, however it is cut into chunks."""
NEVER_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)

Ending = Literal["whole", "broken", "dropped", "refused", "timeout"]
"""whole: answered to the end; broken: dropped inside the body; dropped: before an answer began; refused: no
connection was ever taken; timeout: the client hung up."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the client saw of one request."""

    ending: Ending
    status: int | None = None

    @property
    def good(self) -> bool:
        return self.ending == "whole" and self.status == 200

    @property
    def accepted(self) -> bool:
        """Whether the ingress certainly had the request: the ledger owes a row for it."""
        return self.ending == "whole" or (self.ending == "timeout" and self.status is not None)


class ReplayClient:
    """Sends the requests of one run. The ids it gives them are `<run>-<index>`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        run: str,
        model: str,
        prompts: PromptWriter,
        timeout_s: float,
        refused_patience_s: float,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._run = run
        self.model = model
        self._prompts = prompts
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        self._timeout_s = timeout_s
        self._refused_patience_s = refused_patience_s
        self._on_refused = on_refused

    def request_id(self, index: int) -> str:
        """The id a request is known by in the ledger."""
        return f"{self._run}-{index}"

    async def send(self, index: int, request: TraceRequest) -> Answer:
        """Send one request and read its answer to the end, whatever happens to it.

        A refused connection is tried again with growing pauses: nobody has seen the request yet. A connection
        lost later is not, because the fleet may be working on it.
        """
        body = completion_body(self.model, self._prompts.prompt(request), request.output_tokens)
        headers = {"x-request-id": self.request_id(index), "content-type": "application/json"}
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._refused_patience_s
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return await self._exchange(body, headers)
            except NEVER_CONNECTED:
                self._on_refused()
                if loop.time() + backoff_s > give_up_s:
                    return Answer(ending="refused")
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)

    async def _exchange(self, body: bytes, headers: dict[str, str]) -> Answer:
        status: int | None = None
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(
                    "/v1/completions", data=body, headers=headers, timeout=self._timeout
                ) as response,
            ):
                status = response.status
                tail = b""
                async for chunk in response.content.iter_any():
                    tail = tail[-TAIL_BYTES:] + chunk[-TAIL_BYTES:]
                cut = status == 200 and END_OF_STREAM not in tail
                return Answer(ending="broken" if cut else "whole", status=status)
        except NEVER_CONNECTED:
            raise
        except TimeoutError:
            return Answer(ending="timeout", status=status)
        except (aiohttp.ClientError, OSError):
            return Answer(ending="dropped" if status is None else "broken", status=status)


def completion_body(model: str, prompt: str, output_tokens: int) -> bytes:
    """The JSON body of one streamed completion; an emulated engine answers `output_tokens` tokens."""
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max(BUDGET_TOKENS, output_tokens),
            "stream": True,
            "emulated_output_tokens": output_tokens,
        }
    )


async def first_model(session: aiohttp.ClientSession, patience_s: float) -> str:
    """The first model that the API offers, waiting for an API or an engine that is just (re)starting.

    Raises:
        ReplayError: the API refuses, cannot be reached, or offers none for so many wall seconds.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + patience_s
    while True:
        problem = "it offers no model: no engine is ready"
        try:
            if models := await _offered_models(session):
                return models[0]
        except (aiohttp.ClientError, OSError) as error:
            problem = repr(error)
        if loop.time() > give_up_s:
            raise ReplayError(f"The API cannot be used: {problem}. Is the stack up (`tokenfleet up`)?")
        await asyncio.sleep(FIRST_BACKOFF_S)


async def _offered_models(session: aiohttp.ClientSession) -> list[str]:
    async with session.get("/v1/models") as response:
        body = await response.read()
    if response.status != 200:
        raise ReplayError(f"GET /v1/models answered {response.status}: {body[:200].decode(errors='replace')}")
    try:
        return [model["id"] for model in msgspec.json.decode(body)["data"]]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ReplayError(f"GET /v1/models did not answer a list of models: {body[:200]!r}") from error
