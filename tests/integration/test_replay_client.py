"""The replay client against a small HTTP server that drops, refuses, rejects and loses on command."""

import asyncio
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web
from conftest import NatsServer

from lab.errors import ReplayError
from lab.prompts import PromptWriter
from lab.replay.client import Answer, ReplayClient, first_model
from lab.replay.counters import Counters, client_json
from lab.replay.drive import account, send_all
from lab.replay.ledger import BusLedger, wait_for_rows
from lab.replay.live_policy import policy_during
from lab.replay.options import ReplayOptions
from lab.traces.model import Trace, TraceRequest
from tokenfleet import subjects
from tokenfleet.blocks import text_tokens
from tokenfleet.bus import Bus
from tokenfleet.contracts.ledger import Percentiles, Report, ReportRequest, Summary
from tokenfleet.contracts.policy import Policy
from tokenfleet.errors import UnavailableError

RUN = "replay-test"
QUICK = ReplayOptions(quiet_s=0.6, silence_patience_s=1.0)


class FakeFleet:
    """An API with a ledger. `faults` tells, by request index, what goes wrong at each of its tries."""

    def __init__(self, faults: dict[int, list[str]] | None = None) -> None:
        self.faults = defaultdict(list, {index: list(plan) for index, plan in (faults or {}).items()})
        self.rows: list[str] = []
        self.bodies: dict[str, dict] = {}
        self.arrivals_s: list[float] = []
        self.silent_reports = 0
        self.row_delay_s = 0.0
        self.slow_s = 0.0

    async def completions(self, request: web.Request) -> web.StreamResponse:
        self.arrivals_s.append(asyncio.get_running_loop().time())
        name = request.headers["x-request-id"]
        self.bodies[name] = await request.json()
        plan = self.faults[int(name.rpartition("-")[2])]
        fault = plan.pop(0) if plan else "none"
        if fault == "drop_unaccepted":
            return self._hang_up(request)
        if fault == "answered_but_lost":
            return web.Response(body=b"data: [DONE]\n\n")
        asyncio.get_running_loop().call_later(self.row_delay_s, self.rows.append, name)
        if fault == "drop_accepted":
            return self._hang_up(request)
        if fault == "reject":
            return web.json_response(
                {"error": {"message": "later"}}, status=429, headers={"Retry-After": "1"}
            )
        await asyncio.sleep(self.slow_s)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        if fault == "break":
            return self._hang_up(request)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    def _hang_up(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def report(self, *, list_ids: bool) -> Report:
        if self.silent_reports > 0:
            self.silent_reports -= 1
            raise UnavailableError("nobody answers")
        total = summary(len(self.rows))
        return Report(total=total, classes={}, client_request_ids=tuple(self.rows) if list_ids else ())


def summary(rows: int) -> Summary:
    return Summary(
        offered=rows,
        completed=rows,
        rejected=0,
        timed_out=0,
        cancelled=0,
        failed=0,
        ledger_rows=rows,
        duration_s=1.0,
        input_tokens=0,
        output_tokens=0,
        output_tokens_per_s=0.0,
        goodput_tokens_per_s=0.0,
        wasted_tokens=0,
        attainment_offered=None,
        attainment_admitted=None,
        prefix_reuse=None,
        degraded=0,
        ttft_s=Percentiles(),
        tpot_s=Percentiles(),
        e2e_s=Percentiles(),
    )


def small_trace(requests: int, gap_s: float = 0.0) -> Trace:
    return Trace(
        source="test",
        format="test",
        requests=tuple(
            TraceRequest(
                arrival_s=index * gap_s,
                input_tokens=600,
                output_tokens=20 + index,
                block_ids=(0, 1 + index),
            )
            for index in range(requests)
        ),
    )


@asynccontextmanager
async def serving(fleet: FakeFleet, port: int = 0) -> AsyncIterator[int]:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/completions", fleet.completions)
    app.router.add_get("/v1/models", fleet.models)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client_to(
    port: int, timeout_s: float = 10.0, patience_s: float = 5.0, on_refused: Callable[[], None] = lambda: None
) -> AsyncIterator[ReplayClient]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
        yield ReplayClient(
            session,
            run=RUN,
            model="m",
            prompts=PromptWriter(RUN),
            timeout_s=timeout_s,
            refused_patience_s=patience_s,
            on_refused=on_refused,
        )


async def replay(fleet: FakeFleet, requests: int):
    trace, counters = small_trace(requests), Counters(offered=requests)
    async with serving(fleet) as port, client_to(port) as client:
        await send_all(client, trace, speed=1.0, time_scale=1.0, counters=counters)
        accounting = await account(client, fleet, trace, QUICK, counters)
    return accounting, counters


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_clean_replay_accounts_for_every_request_and_hides_the_answers_length():
    fleet = FakeFleet()
    accounting, counters = await replay(fleet, 20)
    assert accounting.exact
    assert Counter(fleet.rows) == Counter(f"{RUN}-{index}" for index in range(20))
    assert client_json(counters) == {
        "statuses": {"200": 20},
        "endings": {"whole": 20},
        "refused_connections": 0,
        "resent": 0,
    }
    body = fleet.bodies[f"{RUN}-3"]
    assert body["emulated_output_tokens"] == 23
    assert {sent["max_tokens"] for sent in fleet.bodies.values()} == {2048}
    assert body["stream"] is True
    assert len(text_tokens(body["prompt"])) == 600
    assert body["prompt"][:2048] == fleet.bodies[f"{RUN}-4"]["prompt"][:2048]


async def test_a_rejection_is_an_answer_and_is_not_resent():
    accounting, counters = await replay(FakeFleet({1: ["reject"]}), 3)
    assert accounting.exact
    assert counters.answers[1] == Answer(ending="whole", status=429)
    assert counters.resent == 0


async def test_a_connection_dropped_after_the_request_was_accepted_is_not_resent():
    fleet = FakeFleet({0: ["drop_accepted"], 2: ["break"]})
    accounting, counters = await replay(fleet, 4)
    assert accounting.exact
    assert counters.answers[0] == Answer(ending="dropped")
    assert counters.answers[2] == Answer(ending="broken", status=200)
    assert counters.resent == 0


async def test_a_request_that_was_never_accepted_is_resent_once():
    accounting, counters = await replay(FakeFleet({1: ["drop_unaccepted"]}), 3)
    assert accounting.exact
    assert counters.resent == 1
    assert counters.answers[1].good


async def test_a_request_dropped_twice_is_reported_missing():
    accounting, counters = await replay(FakeFleet({1: ["drop_unaccepted", "drop_unaccepted"]}), 3)
    assert accounting.missing == (f"{RUN}-1",)
    assert counters.resent == 1


async def test_an_answered_request_without_a_row_is_lost_and_a_resend_does_not_hide_it():
    accounting, counters = await replay(FakeFleet({2: ["answered_but_lost"]}), 3)
    assert accounting.missing == (f"{RUN}-2",)
    assert counters.resent == 0


async def test_a_request_counted_twice_is_reported():
    fleet = FakeFleet()
    fleet.rows.append(f"{RUN}-0")
    accounting, _ = await replay(fleet, 3)
    assert accounting.duplicated == (f"{RUN}-0",)


async def test_refused_connections_are_tried_again_until_the_server_is_there():
    port, fleet = free_port(), FakeFleet()
    refusals = Counter()
    async with client_to(port, on_refused=lambda: refusals.update(["refused"])) as client:
        sending = asyncio.create_task(client.send(0, small_trace(1).requests[0]))
        await asyncio.sleep(0.3)
        assert not sending.done()
        async with serving(fleet, port):
            assert await sending == Answer(ending="whole", status=200)
    assert refusals["refused"] >= 1
    assert fleet.rows == [f"{RUN}-0"]


async def test_refused_connections_are_given_up_after_the_patience():
    async with client_to(free_port(), patience_s=0.3) as client:
        answer = await client.send(0, small_trace(1).requests[0])
    assert answer == Answer(ending="refused")
    assert not answer.accepted


async def test_the_client_hangs_up_when_its_timeout_passes():
    fleet = FakeFleet()
    fleet.slow_s = 1.0
    async with serving(fleet) as port, client_to(port, timeout_s=0.2) as client:
        assert await client.send(0, small_trace(1).requests[0]) == Answer(ending="timeout")


async def test_arrivals_are_open_loop_at_the_traces_pace_times_speed_and_scale():
    fleet = FakeFleet()
    fleet.slow_s = 0.5
    counters = Counters(offered=5)
    async with serving(fleet) as port, client_to(port) as client:
        await send_all(client, small_trace(5, gap_s=0.8), speed=2.0, time_scale=4.0, counters=counters)
    gaps = [after - before for before, after in zip(fleet.arrivals_s, fleet.arrivals_s[1:], strict=False)]
    assert sum(gaps) == pytest.approx(0.4, abs=0.15), "four gaps of 0.8 s, eight times faster"
    assert max(gaps) < 0.4, "no arrival waits for a slow answer"


async def test_rows_that_come_late_are_waited_for():
    fleet = FakeFleet()
    fleet.row_delay_s = 0.5
    accounting, counters = await replay(fleet, 5)
    assert accounting.exact
    assert counters.rows == 5


async def test_a_silent_accountant_is_waited_for_but_not_for_ever():
    fleet = FakeFleet()
    fleet.rows = [f"{RUN}-0"]
    fleet.silent_reports = 3
    report = await wait_for_rows(fleet, 1, quiet_s=0.2, silence_patience_s=5.0, poll_s=0.02)
    assert report.client_request_ids == (f"{RUN}-0",)
    fleet.silent_reports = 10_000
    with pytest.raises(ReplayError, match="goodput-accountant"):
        await wait_for_rows(fleet, 1, quiet_s=0.2, silence_patience_s=0.2, poll_s=0.02)


async def test_the_first_model_on_offer_is_waited_for():
    port = free_port()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        with pytest.raises(ReplayError, match="tokenfleet up"):
            await first_model(session, patience_s=0.2)
        asking = asyncio.create_task(first_model(session, patience_s=5.0))
        await asyncio.sleep(0.2)
        async with serving(FakeFleet(), port):
            assert await asking == "m"


@pytest.mark.integration
async def test_the_policy_of_a_run_is_live_during_it_and_the_former_is_back_after_a_failure(
    nats_server: NatsServer,
):
    bus = await Bus.connect(nats_server.settings("operator"), "test")
    try:
        bucket = await bus.bucket(subjects.BUCKET_POLICY)
        await bucket.put(subjects.POLICY_KEY, msgspec.json.encode(Policy(request_timeout_s=77.0)))

        async def live() -> Policy:
            stored = await bucket.get(subjects.POLICY_KEY)
            assert stored is not None
            return msgspec.json.decode(stored[0], type=Policy)

        async def failing_run() -> None:
            async with policy_during(bus, "round_robin"):
                assert await live() == Policy(routing="round_robin", admission=False, request_timeout_s=77.0)
                raise RuntimeError("the run failed")

        with pytest.raises(RuntimeError):
            await failing_run()
        assert await live() == Policy(request_timeout_s=77.0)
    finally:
        await bus.drain()


@pytest.mark.integration
async def test_a_runs_rows_are_asked_of_the_accountant_over_nats(nats_server: NatsServer):
    accountant = await Bus.connect(nats_server.settings("goodput_accountant"), "accountant")
    operator = await Bus.connect(nats_server.settings("operator"), "test")
    asked: list[ReportRequest] = []

    async def answer(request: ReportRequest) -> Report:
        asked.append(request)
        return Report(total=summary(1), classes={}, client_request_ids=(f"{RUN}-0",))

    try:
        await accountant.serve(subjects.ledger_report("local"), ReportRequest, answer)
        report = await BusLedger(operator, "local", RUN).report(list_ids=True)
        assert report.client_request_ids == (f"{RUN}-0",)
        assert asked == [ReportRequest(client_request_id_prefix=f"{RUN}-", list_ids=True)]
    finally:
        await operator.drain()
        await accountant.drain()
