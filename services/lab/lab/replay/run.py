"""One replay from beginning to end, callable from code."""

import asyncio
import resource
import secrets
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from lab.errors import ReplayError
from lab.prompts import PromptWriter
from lab.replay.client import ReplayClient, first_model
from lab.replay.counters import Counters, client_json
from lab.replay.drive import Accounting, account, send_all
from lab.replay.ledger import BusLedger
from lab.replay.live_policy import policy_during
from lab.replay.options import ReplayOptions
from lab.replay.report import report_json
from lab.replay.stack import Stack
from lab.traces.model import Trace
from tokenfleet.bus import Bus
from tokenfleet.contracts.ledger import Report

SPARE_DESCRIPTORS = 512
SHOWN_NAMES = 20


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a replay. The figures are the ledger's; the counters are the client's."""

    run: str
    trace: Trace
    model: str
    options: ReplayOptions
    time_scale: float
    accounting: Accounting
    counters: Counters
    wall_s: float

    @property
    def report(self) -> Report:
        return self.accounting.report

    def as_json(self) -> dict[str, Any]:
        """The document that `--json` writes."""
        return {
            **report_json(self.report),
            "requests": len(self.trace.requests),
            "missing": list(self.accounting.missing),
            "duplicated": list(self.accounting.duplicated),
            "client": client_json(self.counters),
            "run": self.run,
            "trace": self.trace.source,
            "assumptions": list(self.trace.assumptions),
            "model": self.model,
            "policy": self.options.policy,
            "speed": self.options.speed,
            "time_scale": self.time_scale,
            "wall_s": round(self.wall_s, 3),
        }

    def check(self) -> None:
        """Raises ReplayError, naming the requests, unless each has exactly one ledger row."""
        if self.accounting.exact:
            return
        problems = []
        if self.accounting.missing:
            problems.append(f"without a ledger row: {self._described(self.accounting.missing)}")
        if self.accounting.duplicated:
            problems.append(f"with more than one ledger row: {self._described(self.accounting.duplicated)}")
        raise ReplayError(
            f"Not every request is accounted for. Of {len(self.trace.requests)} requests, "
            + "; ".join(problems)
        )

    def _described(self, names: tuple[str, ...]) -> str:
        """Request ids with what the client saw of them."""
        shown = ", ".join(f"{name} ({self._seen(name)})" for name in names[:SHOWN_NAMES])
        rest = len(names) - SHOWN_NAMES
        return shown + (f" and {rest} more" if rest > 0 else "")

    def _seen(self, name: str) -> str:
        answer = self.counters.answers.get(int(name.rpartition("-")[2]))
        if answer is None:
            return "not sent"
        return answer.ending if answer.status is None else f"{answer.ending} answer {answer.status}"


async def run_replay(
    stack: Stack,
    trace: Trace,
    options: ReplayOptions,
    *,
    on_start: Callable[[Counters], None] = lambda _: None,
) -> ReplayResult:
    """Drive a trace through a running stack, and read the report back from its ledger.

    Every run has its own name and its own prompts, so it neither counts another's rows nor hits its cache.
    `on_start` is given the counters, which change while the replay runs.

    Raises:
        ReplayError: the API or the ledger cannot be used. A request lost on the way does not raise here:
            see `ReplayResult.check`.
    """
    run = f"replay-{secrets.token_hex(4)}"
    counters = Counters(offered=len(trace.requests))
    allow_open_connections(len(trace.requests))
    loop = asyncio.get_running_loop()
    bus = await Bus.connect(stack.settings, run)
    try:
        async with _session(stack) as session:
            client = ReplayClient(
                session,
                run=run,
                model=options.model or await first_model(session, options.refused_patience_s),
                prompts=PromptWriter(salt=run),
                timeout_s=options.timeout_s / stack.time_scale,
                refused_patience_s=options.refused_patience_s,
                on_refused=counters.note_refused,
            )
            on_start(counters)
            started_s = loop.time()
            async with policy_during(bus, options.policy):
                await send_all(client, trace, options.speed, stack.time_scale, counters)
                ledger = BusLedger(bus, stack.settings.site, run)
                accounting = await account(client, ledger, trace, options, counters)
            return ReplayResult(
                run=run,
                trace=trace,
                model=client.model,
                options=options,
                time_scale=stack.time_scale,
                accounting=accounting,
                counters=counters,
                wall_s=loop.time() - started_s,
            )
    finally:
        await bus.drain()


def allow_open_connections(count: int) -> None:
    """Raise this process's limit of open files as far as it may, up to one for each connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _session(stack: Stack) -> aiohttp.ClientSession:
    # A connection of its own for each request: a reused one that the server is just closing would make a
    # request look lost that was never sent.
    headers = {"authorization": f"Bearer {stack.api_key}"} if stack.api_key else {}
    return aiohttp.ClientSession(
        base_url=stack.api_url,
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
    )
