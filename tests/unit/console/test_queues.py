"""`tokenfleet queue`: what is said of what waits, from SLOMax's /health."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner
from rich.console import Console

from console.commands.queue import readings
from console.main import cli
from console.queues import read_queues, render
from tokenfleet.errors import UnavailableError

HEALTH: dict[str, Any] = {
    "service": "slomax",
    "deciding": ["llama-70b@1", "tiny@2"],
    "queues": {
        "llama-70b@1": {
            "interactive": {
                "requests": 1_200,
                "input_tokens": 4_500_000,
                "oldest_wait_s": 3.21,
                "expected_start_s": 12.5,
                "tenants": {"acme": 900, "beta": 300},
            },
            "batch": {
                "requests": 7,
                "input_tokens": 70_000,
                "oldest_wait_s": 600.0,
                "expected_start_s": None,
                "tenants": {f"t{number}": 1 for number in range(7)},
            },
            "long_context": {
                "requests": 0,
                "input_tokens": 0,
                "oldest_wait_s": 0.0,
                "expected_start_s": None,
                "tenants": {},
            },
        },
        "tiny@2": {},
    },
    "control": {"llama-70b@1": {"wait_share_of_slack": 0.31, "state": "steady"}, "tiny@2": {}},
}


def shown(health: dict[str, Any], pool: str | None = None) -> str:
    console = Console(width=170)
    with console.capture() as capture:
        console.print(render(read_queues(health, pool)), highlight=False)
    return capture.get()


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if f" {name} " in line]
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_each_class_says_what_waits_how_long_and_for_whom():
    assert row(shown(HEALTH), "interactive") == [
        "llama-70b@1",
        "interactive",
        "1,200",
        "4,500,000",
        "3.2 s",
        "in 12.5 s",
        "acme 900, beta 300",
    ]


def test_an_unknown_start_is_called_unknown_and_many_tenants_are_counted():
    batch = row(shown(HEALTH), "batch")
    assert batch[5] == "unknown"
    assert batch[6] == "t0 1, t1 1, t2 1, t3 1, t4 1, 2 more"


def test_an_empty_queue_is_shown_as_empty():
    assert row(shown(HEALTH), "long_context")[2:5] == ["0", "0", "-"]


def test_the_margins_as_they_stand_are_shown_for_each_pool():
    assert "llama-70b@1: state steady, wait_share_of_slack 0.31" in shown(HEALTH)


def test_one_pool_may_be_asked_for_and_a_wrong_one_is_answered_with_the_known():
    assert "Nothing waits." in shown(HEALTH, "tiny@2")
    assert "llama" not in shown(HEALTH, "tiny@2")
    with pytest.raises(UnavailableError, match=r"no pool named llama\. It decides for: llama-70b@1, tiny@2"):
        read_queues(HEALTH, "llama")


def test_a_slomax_that_decides_for_nothing_yet_says_so():
    assert "no pool yet" in shown({"service": "slomax"})


def test_what_cannot_be_read_is_an_error_that_says_where():
    with pytest.raises(UnavailableError, match="requests"):
        read_queues({"queues": {"p": {"interactive": {"requests": "many"}}}})


async def test_watching_reads_again_and_a_slomax_that_goes_away_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("console.commands.queue.WATCH_S", 0.01)
    answers = [HEALTH, {**HEALTH, "queues": {}}]

    async def health(_: web.Request) -> web.Response:
        return web.json_response(answers.pop(0)) if answers else web.Response(status=503)

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    log = tmp_path / "slomax.log"
    log.write_text(f'{{"admin": "{runner.addresses[0]}", "event": "started"}}\n')
    try:
        reading = readings(log, None)
        assert await anext(reading) == read_queues(HEALTH)
        assert await anext(reading) == read_queues({"control": HEALTH["control"]})
        with pytest.raises(UnavailableError, match="does not answer"):
            await anext(reading)
    finally:
        await runner.cleanup()


def test_json_has_the_shape_that_slomax_publishes():
    printed = msgspec.json.decode(msgspec.json.encode(read_queues(HEALTH)))
    assert printed == {"queues": HEALTH["queues"], "control": HEALTH["control"]}


def test_without_a_stack_the_command_says_what_to_do(tmp_path: Path):
    result = CliRunner().invoke(cli, ["queue", "--state-dir", str(tmp_path)])
    assert "tokenfleet up" in str(result.exception)
