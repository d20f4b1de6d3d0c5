"""Requests to one engine over HTTP, sent open loop, and when their tokens came back.

Beside them a stopwatch runs: how late this process wakes up, and how long the engine takes to answer a health
check. On a machine that is too busy to keep time, that is what the figures of the requests show.
"""

import asyncio
from collections.abc import Callable, Sequence

import aiohttp
import msgspec
import numpy as np

from lab.errors import TrustError
from lab.prompts import PromptWriter
from lab.traces.model import Trace, TraceRequest
from lab.trust.engine_process import RunningEngine
from lab.trust.served import Served

PROBE_S = 0.05
TAIL_BYTES = 2_048
"""Enough of a stream's end to hold its event with the token counts."""

OnDone = Callable[[], None]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a client saw of one engine. Times are engine seconds since the first request was sent."""

    sent: Trace
    """The requests at the times at which they were really sent."""
    served: list[Served]
    disturbance_s: float
    """By how much the machine disturbed timing: P95 of how late this process woke plus P95 of a health check."""


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails


class _Event(msgspec.Struct, frozen=True):
    usage: _Usage


class _Seen(msgspec.Struct, frozen=True):
    """Event-loop seconds of one answer."""

    sent_s: float
    first_token_s: float
    ended_s: float
    usage: _Usage


async def drive(
    engine: RunningEngine, trace: Trace, speed: float, on_done: OnDone = lambda: None
) -> Observed:
    """Send every request of a trace at its time, whatever became of the others, and time the answers.

    Raises:
        TrustError: an answer was refused, broke off or was not as long as asked for.
    """
    bodies = _bodies(engine, trace)
    loop = asyncio.get_running_loop()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    seen: list[_Seen] = []

    async def one(body: bytes, request: TraceRequest) -> None:
        seen.append(await _exchange(session, body, request))
        on_done()

    async with aiohttp.ClientSession(engine.url, connector=connector, timeout=timeout) as session:
        lags_s: list[float] = []
        stopwatch = asyncio.create_task(_watch(session, lags_s))
        try:
            started_s = loop.time()
            async with asyncio.TaskGroup() as group:
                for request, body in zip(trace.requests, bodies, strict=True):
                    due_s = started_s + request.arrival_s / (speed * engine.time_scale)
                    await asyncio.sleep(max(due_s - loop.time(), 0.0))
                    group.create_task(one(body, request))
        except ExceptionGroup as group:
            raise TrustError(f"The engine did not answer as it should: {group.exceptions[0]}") from group
        finally:
            stopwatch.cancel()
    return _observed(trace, seen, engine.time_scale, float(np.percentile(lags_s, 95)) if lags_s else 0.0)


def _bodies(engine: RunningEngine, trace: Trace) -> Sequence[bytes]:
    """All bodies, made before the clock starts."""
    prompts = PromptWriter("trust")
    return [
        msgspec.json.encode(
            {
                "model": engine.model,
                "prompt": prompts.prompt(request),
                "max_tokens": request.output_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                "emulated_output_tokens": request.output_tokens,
            }
        )
        for request in trace.requests
    ]


async def _exchange(session: aiohttp.ClientSession, body: bytes, request: TraceRequest) -> _Seen:
    loop = asyncio.get_running_loop()
    headers = {"content-type": "application/json"}
    sent_s = loop.time()
    first_token_s: float | None = None
    tail = b""
    async with session.post("/v1/completions", data=body, headers=headers) as response:
        if response.status != 200:
            text = (await response.read())[:200].decode(errors="replace")
            raise TrustError(f"status {response.status}: {text}")
        async for chunk in response.content.iter_any():
            if first_token_s is None:
                first_token_s = loop.time()
            tail = tail[-TAIL_BYTES:] + chunk[-TAIL_BYTES:]
    ended_s = loop.time()
    usage = _usage(tail)
    expected = (request.input_tokens, request.output_tokens)
    if first_token_s is None or (usage.prompt_tokens, usage.completion_tokens) != expected:
        raise TrustError(f"asked for {expected} tokens in and out, it counted {usage}")
    return _Seen(sent_s=sent_s, first_token_s=first_token_s, ended_s=ended_s, usage=usage)


def _usage(tail: bytes) -> _Usage:
    events = [line for line in tail.split(b"\n") if line.startswith(b"data: {")]
    try:
        return msgspec.json.decode(events[-1].removeprefix(b"data: "), type=_Event).usage
    except (IndexError, msgspec.MsgspecError) as error:
        raise TrustError(f"a stream broke off; it ends {tail[-200:]!r}") from error


async def _watch(session: aiohttp.ClientSession, lags_s: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        started_s = loop.time()
        await asyncio.sleep(PROBE_S)
        woken_s = loop.time()
        async with session.get("/health") as response:
            await response.read()
        lags_s.append(loop.time() - woken_s + max(0.0, woken_s - started_s - PROBE_S))


def _observed(trace: Trace, seen: list[_Seen], time_scale: float, lag_s: float) -> Observed:
    """In engine seconds and in the order in which the requests were sent, which is the trace's."""
    seen = sorted(seen, key=lambda answer: answer.sent_s)
    started_s = seen[0].sent_s
    requests = [
        msgspec.structs.replace(request, arrival_s=(answer.sent_s - started_s) * time_scale)
        for request, answer in zip(trace.requests, seen, strict=True)
    ]
    return Observed(
        sent=msgspec.structs.replace(trace, requests=tuple(requests)),
        served=[_served(answer, started_s, time_scale) for answer in seen],
        disturbance_s=lag_s * time_scale,
    )


def _served(answer: _Seen, started_s: float, time_scale: float) -> Served:
    output_tokens = answer.usage.completion_tokens
    decode_s = (answer.ended_s - answer.first_token_s) * time_scale
    return Served(
        input_tokens=answer.usage.prompt_tokens,
        output_tokens=output_tokens,
        reused_tokens=answer.usage.prompt_tokens_details.cached_tokens,
        ttft_s=(answer.first_token_s - answer.sent_s) * time_scale,
        tpot_s=decode_s / (output_tokens - 1) if output_tokens > 1 else None,
        ended_s=(answer.ended_s - started_s) * time_scale,
    )
