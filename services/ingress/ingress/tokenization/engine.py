"""Asks engines for token ids (`POST /tokenize`), without ever letting a slow or broken one hold a request up.

vLLM and SGLang both take a `prompt` or (older SGLang: only a prompt) `messages`, and answer with `tokens` and their
`count`. Whether an engine does is found out in the background when it is registered, once for each of its lives.
A request asks one engine, for a bounded time, and only if not too many are asking already. An engine that fails more
often than it answers is left alone until a question in the background is answered again, and for longer each time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import structlog

from ingress.engine_connection import EngineError
from ingress.tokenization.chat import Chat
from ingress.upstream import EngineClient
from tokenfleet.blocks import TokenIds
from tokenfleet.contracts.fleet import InstanceRecord

log = structlog.get_logger(__name__)

PATH = "/tokenize"
FAILURES_TO_OPEN = 3
"""More than successes, until an engine is left alone."""
RETRY_S = 1.0
RETRY_MAX_S = 60.0
PROBE_TIMEOUT_S = 5.0
"""Nobody waits for the answer to a question in the background."""
MAX_ANSWER_BYTES = 32 << 20

_PROBE_TEXT = "a"
_PROBE_CHAT = Chat(
    [{"role": "user", "content": _PROBE_TEXT}],
    None,
    {"add_generation_prompt": True, "continue_final_message": False},
    False,
)


class _Answer(msgspec.Struct, frozen=True):
    tokens: list[int]
    count: int


@dataclass(slots=True)
class _Engine:
    """One life of one engine."""

    record: InstanceRecord
    takes_prompts: bool = False
    takes_chats: bool = False
    failures: int = 0
    """Less the successes since."""
    left_alone: bool = False
    retry_s: float = RETRY_S


class EngineTokenizers:
    """The engines that may be asked."""

    def __init__(
        self,
        client: EngineClient,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        timeout_s: float,
        concurrency: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._spawn = spawn
        self._timeout_s = timeout_s
        self._concurrency = concurrency
        self._sleep = sleep
        self._engines: dict[str, _Engine] = {}
        self._asking = 0

    def watch(self, instance: str, record: InstanceRecord | None) -> None:
        """An engine was registered, or (None) is gone. A new life is asked anew what it can do."""
        if record is None:
            self._engines.pop(instance, None)
            return
        known = self._engines.get(instance)
        if known is not None and known.record.generation == record.generation:
            known.record = record
            return
        engine = self._engines[instance] = _Engine(record)
        self._spawn(self._find_out(engine))

    def can(self, record: InstanceRecord, chat: bool) -> bool:
        """Whether an instance may be asked now. Another site's never is, which may have an instance of the same name:
        a prompt leaves its entry only for the engine that serves it.
        """
        engine = self._engines.get(record.instance)
        if engine is None or engine.left_alone or engine.record.site != record.site:
            return False
        return engine.takes_chats if chat else engine.takes_prompts

    async def chat(self, records: Sequence[InstanceRecord], chat: Chat) -> TokenIds | None:
        """The token ids of a chat's prompt from one of the instances; None if none can tell in time."""
        return await self._ask_one(records, _chat_fields(chat), chat=True)

    async def text(
        self, records: Sequence[InstanceRecord], text: str, add_special_tokens: bool
    ) -> TokenIds | None:
        """The token ids of a text from one of the instances; None if none can tell in time."""
        fields = {"prompt": text, "add_special_tokens": add_special_tokens}
        return await self._ask_one(records, fields, chat=False)

    async def _ask_one(
        self, records: Sequence[InstanceRecord], fields: Mapping[str, Any], *, chat: bool
    ) -> TokenIds | None:
        able = [record for record in records if self.can(record, chat)]
        if not able or self._asking >= self._concurrency:
            return None
        record = able[self._asking % len(able)]
        engine = self._engines[record.instance]
        self._asking += 1
        try:
            ids = await self._ask(record, fields, self._timeout_s)
            self._answered(engine)
            return ids
        except (EngineError, TimeoutError) as error:
            self._failed(engine, error)
            return None
        finally:
            self._asking -= 1

    def _answered(self, engine: _Engine) -> None:
        if engine.failures:
            engine.failures -= 1
        else:
            engine.retry_s = RETRY_S

    def _failed(self, engine: _Engine, error: Exception) -> None:
        engine.failures += 1
        if engine.failures >= FAILURES_TO_OPEN and not engine.left_alone:
            engine.left_alone = True
            log.warning(
                "engine left alone", path=PATH, instance=engine.record.instance, error=str(error) or "timeout"
            )
            self._spawn(self._find_out(engine))

    async def _find_out(self, engine: _Engine) -> None:
        """Ask what an engine can do until it answers or its life ends."""
        if engine.left_alone:
            await self._wait(engine)
        while self._engines.get(engine.record.instance) is engine:
            try:
                prompt = {"prompt": _PROBE_TEXT, "add_special_tokens": False}
                engine.takes_prompts = await self._ask(engine.record, prompt, PROBE_TIMEOUT_S) is not None
                engine.takes_chats = engine.takes_prompts and (
                    await self._ask(engine.record, _chat_fields(_PROBE_CHAT), PROBE_TIMEOUT_S) is not None
                )
            except (EngineError, TimeoutError):
                await self._wait(engine)
            else:
                engine.failures, engine.left_alone = 0, False
                return

    async def _wait(self, engine: _Engine) -> None:
        wait_s = engine.retry_s
        engine.retry_s = min(2 * wait_s, RETRY_MAX_S)
        await self._sleep(wait_s)

    async def _ask(
        self, record: InstanceRecord, fields: Mapping[str, Any], timeout_s: float
    ) -> TokenIds | None:
        """The ids an engine computes; None if it does not offer that, or not for these fields.

        Raises:
            EngineError, TimeoutError: it cannot tell now.
        """
        body = msgspec.json.encode({"model": record.model, **fields})
        headers = {"content-type": "application/json", "accept": "application/json"}
        async with asyncio.timeout(timeout_s):
            answer = await self._client.post(record.url, PATH, headers, body)
            try:
                data = await answer.read_all(MAX_ANSWER_BYTES)
            finally:
                answer.close()
        if answer.status >= 500 or answer.status == 429:
            raise EngineError("engine_tokenize", f"answers {answer.status}")
        return _ids(data) if answer.status == 200 else None


def _ids(data: bytes) -> TokenIds | None:
    """The ids in an answer; None if it is not one of the form known here."""
    try:
        answer = msgspec.json.decode(data, type=_Answer)
        if answer.count != len(answer.tokens) or not answer.tokens:
            return None
        return np.array(answer.tokens, dtype=np.uint32)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
        return None


def _chat_fields(chat: Chat) -> dict[str, Any]:
    """A chat as `/tokenize` takes it, which knows fewer fields than the chat API: the rest are template variables."""
    variables = dict(chat.variables)
    own = {name: variables.pop(name) for name in ("add_generation_prompt", "continue_final_message")}
    fields: dict[str, Any] = {"messages": chat.messages, **own, "add_special_tokens": chat.add_special_tokens}
    if chat.tools:
        fields["tools"] = chat.tools
    if variables:
        fields["chat_template_kwargs"] = variables
    return fields
