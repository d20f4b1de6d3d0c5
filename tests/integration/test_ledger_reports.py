"""What people ask of a real ledger, by command and over HTTP: every form says the same, and nobody sees another's."""

import asyncio
import contextlib
import csv
import gzip
import hashlib
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import aiohttp
import asyncpg
import msgspec
import pyarrow.parquet
import pytest
from accountants import POOL, SITE, accountant, ended_request
from click.testing import CliRunner, Result
from conftest import NatsServer
from integration.ingress_world import IngressProcess, ingress_process

from console.main import cli
from goodput_accountant.ledger import Ledger
from goodput_accountant.migrations import migrate
from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.report import KEYS
from goodput_accountant.settings import REPOSITORY_MIGRATIONS
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.ledger import GroupBy, Report, ReportRequest
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import Ended

pytestmark = pytest.mark.integration

SECOND_NS = 10**9
FIRST_DAY_NS = round(datetime(2026, 5, 4, 9, tzinfo=UTC).timestamp()) * SECOND_NS
DAY_NS = 86_400 * SECOND_NS
GPU = {"prefill_gpu_s": 0.5, "decode_gpu_s": 1.5}
UNKNOWN = dict.fromkeys(("ttft_s", "tpot_s", "prefill_gpu_s", "decode_gpu_s"))
BULK = 4_000
"""More than one page."""

Command = Callable[..., Awaitable[Result]]
Get = Callable[..., Awaitable[tuple[int, Any]]]


def requests() -> Iterator[Ended]:
    """Some of every kind on one day, of two tenants; on the next day many of a third."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"retried_input_tokens": 70, "retried_output_tokens": 3, "retried_gpu_s": 0.25},
        {"ttft_s": 9.0},
        {"outcome": "timed_out", "status": 504},
        {"outcome": "cancelled", "status": 499},
        {"outcome": "failed", "status": 502, "instance": "engine-2"},
        {"outcome": "lost", "output_tokens": 0, "reused_tokens": 0, **UNKNOWN},
        {
            "outcome": "rejected",
            "status": 429,
            "admitted": False,
            "instance": None,
            "output_tokens": 0,
            **UNKNOWN,
        },
        {"objective": None, "request_class": "batch"},
        {"pool": "tiny@2", "model": "tiny", "instance": "engine-9"},
    )
    for tenant in ("acme", "other"):
        for number, kind in enumerate(kinds):
            submitted_ns = FIRST_DAY_NS + number * SECOND_NS
            times = {"submitted_ns": submitted_ns, "time_ns": submitted_ns + SECOND_NS}
            names = {"tenant": tenant, "client_request_id": f"{tenant}-{number}"}
            yield ended_request(f"{tenant}{number}", **(GPU | times | names | kind))
    for number in range(BULK):
        submitted_ns = FIRST_DAY_NS + DAY_NS + number * 10**6
        times = {"submitted_ns": submitted_ns, "time_ns": submitted_ns + SECOND_NS}
        yield ended_request(f"bulk{number}", tenant="bulk", client_request_id=f"bulk-{number}", **times)


ROWS: tuple[LedgerRow, ...] = tuple(map(account, requests()))
DAY = ("--from", "2026-05-04", "--to", "2026-05-05")


@pytest.fixture(scope="module")
def ledger(postgres_dsn: str) -> str:
    async def fill() -> None:
        await migrate(await asyncpg.connect(postgres_dsn), REPOSITORY_MIGRATIONS)
        ledger = await Ledger.open(postgres_dsn)
        # Given up as lost, and then its true outcome came: only that counts.
        happened = next(requests())
        gone = {"outcome": "lost", "output_tokens": 0, "event_id": f"{happened.event_id}.lost", **UNKNOWN}
        await ledger.append([account(msgspec.structs.replace(happened, **gone))])
        # Out of order, as they may come.
        await ledger.append(ROWS[::2])
        await ledger.append(ROWS[1::2])
        await ledger.close()

    asyncio.run(fill())
    return postgres_dsn


@pytest.fixture
async def tokenfleet(nats_server: NatsServer, ledger: str) -> AsyncIterator[Command]:
    """Runs a command as the operator, beside an accountant."""
    environment = nats_server.environment("operator") | {"TOKENFLEET_SITE": SITE}

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=environment)

    async with accountant(nats_server, ledger):
        yield run


@contextlib.asynccontextmanager
async def policy(nats_server: NatsServer, **settings: Any) -> AsyncIterator[Bus]:
    """The operator's connection while a policy is in force."""
    bus = await Bus.connect(nats_server.settings("operator"), "operator")
    bucket = await bus.bucket(subjects.BUCKET_POLICY)
    await bucket.put(subjects.POLICY_KEY, msgspec.json.encode(Policy(**settings)))
    try:
        yield bus
    finally:
        await bucket.delete(subjects.POLICY_KEY)
        await bus.drain()


async def changed(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


# -- reports by command


@pytest.mark.parametrize("by", get_args(GroupBy))
async def test_every_grouping_has_all_requests_and_every_form_says_the_same(
    tokenfleet: Command, by: GroupBy
) -> None:
    day = [row for row in ROWS if row.tenant != "bulk"]
    expected = {name: sum(KEYS[by](row) == name for row in day) for name in sorted(set(map(KEYS[by], day)))}

    as_json = await tokenfleet("ledger", "report", "--by", by, *DAY, "--format", "json")
    report = json.loads(as_json.output)
    assert {name: summary["offered"] for name, summary in report["groups"].items()} == expected
    assert report["total"]["offered"] == sum(expected.values()) == 20

    as_csv = await tokenfleet("ledger", "report", "--by", by, *DAY, "--format", "csv")
    total, *lines = csv.DictReader(io.StringIO(as_csv.output))
    assert (total["by"], total["group"], total["offered"]) == ("total", "", "20")
    assert {line["group"]: int(line["offered"]) for line in lines} == expected
    for line in lines:
        summary = report["groups"][line["group"]]
        assert float(line["goodput_tokens_per_s"]) == summary["goodput_tokens_per_s"]
        wasted = {name: each["prefill_tokens"] for name, each in summary["waste"].items()}
        causes = ("timed_out", "cancelled", "failed", "lost", "late", "retried")
        assert {name: int(line[f"waste_{name}_prefill_tokens"]) for name in causes} == (
            dict.fromkeys(causes, 0) | wasted
        )

    table = await tokenfleet("ledger", "report", "--by", by, *DAY)
    assert table.exit_code == 0, table.output
    assert all(name in table.output for name in expected)


async def test_a_table_shows_waste_by_cause_what_was_lost_and_what_had_no_objective(
    tokenfleet: Command,
) -> None:
    table = (await tokenfleet("ledger", "report", "--tenant", "acme", *DAY)).output
    lines = {cells[0]: cells[1:] for cells in map(_cells, table.splitlines()) if cells}
    assert lines["retried"] == ["1", "70", "3", "0.2"]
    assert lines["timed out"] == ["1", "500", "10", "2.0"]  # the one of the last table: the waste
    assert lines["lost"] == ["1", "0", "0", "0.0"]
    assert lines["all"] == ["2,070", "43", "8.2"]
    assert lines["without objective"][0] == "1"
    assert lines["their output tokens"][0] == "10"
    assert lines["TTFT over its limit"][0] == "1"


async def test_costs_go_by_the_prices_of_the_policy(tokenfleet: Command, nats_server: NatsServer) -> None:
    async def total(*arguments: str) -> dict[str, Any]:
        result = await tokenfleet("ledger", "report", "--tenant", "acme", *DAY, "--json", *arguments)
        return json.loads(result.output)["total"]

    assert (await total())["cost"] is None
    refused = await tokenfleet("ledger", "top", "--sort", "cost", *DAY)
    assert refused.exit_code == 1
    assert "gpu_hour_prices" in refused.output

    async with policy(nats_server, gpu_hour_prices={POOL: 36.0, "*": 3.6}):
        await asyncio.sleep(0.3)
        figures = await total()
        llama_s, tiny_s = 7 * 2.0 + 0.25, 2.0
        assert figures["gpu_s"] == pytest.approx(llama_s + tiny_s)
        assert figures["cost"] == pytest.approx(llama_s * 0.01 + tiny_s * 0.001)
        good = figures["good_output_tokens"]
        assert figures["cost_per_million_good_tokens"] == pytest.approx(figures["cost"] / good * 1e6)
        table = await tokenfleet("ledger", "top", "--sort", "cost", "--by", "pool", *DAY)
        assert table.output.index(POOL) < table.output.index("tiny@2")

    async with policy(nats_server, gpu_hour_prices={"tiny@2": 1.0}):
        await asyncio.sleep(0.3)
        assert (await total())["cost"] is None
        assert (await total("--pool", "tiny@2"))["cost"] is not None


async def test_top_has_the_groups_with_the_most_first_and_says_how_many_it_leaves_out(
    tokenfleet: Command,
) -> None:
    top = await tokenfleet("ledger", "top", "--by", "instance", "--sort", "misses", "--limit", "3", *DAY)
    assert top.exit_code == 0, top.output
    assert top.output.index("engine-1") < top.output.index("engine-2")
    assert "engine-9" not in top.output
    assert "1 more not shown" in top.output

    as_json = await tokenfleet("ledger", "top", "--sort", "goodput", "--limit", "1", "--json")
    assert list(json.loads(as_json.output)["groups"]) == ["bulk"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--from", "2026-05-05", "--to", "2026-05-04"), 2, "the window is empty"),
        (("--last", "1h", "--from", "2h"), 2, "--last is a span of its own"),
        (("--last", "soon"), 2, "is not a duration"),
        (("--from", "tomorrow"), 2, "neither a time"),
        (("--from", "9999-01-01"), 2, "after 2261"),
        (("--by", "colour"), 2, "is not one of"),
        (("--from", "2030-01-01", "--to", "2030-01-02"), 0, "no requests that match"),
        (("--tenant", "a\0b"), 1, "it has a NUL"),
    ],
)
async def test_a_question_that_makes_no_sense_is_answered_with_why(
    tokenfleet: Command, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = await tokenfleet("ledger", "report", *arguments)
    assert (result.exit_code, message in result.output) == (status, True), result.output


async def test_days_that_are_no_longer_kept_or_missing_are_named(
    tokenfleet: Command, ledger: str, tmp_path: Path
) -> None:
    commands = (("report",), ("export", "--out", str(tmp_path / "rows.csv")))
    await changed(ledger, "UPDATE ledger_days SET dropped_rows = rows WHERE day = '2026-05-04'")
    try:
        export = await tokenfleet("ledger", *commands[1], *DAY)
        assert export.exit_code == 1
        assert "up to 2026-05-04 (UTC), are no longer kept row by row. Ask from 2026-05-05" in export.output
        by_instance = await tokenfleet("ledger", "report", "--by", "instance", *DAY)
        assert by_instance.exit_code == 1
        assert "up to 2026-05-04 (UTC) are no longer kept, and this report needs rows" in by_instance.output
        for span in (DAY, ()):
            # Roll-ups stay.
            report = await tokenfleet("ledger", "report", "--json", *span)
            assert report.exit_code == 0
    finally:
        await changed(ledger, "UPDATE ledger_days SET dropped_rows = 0 WHERE day = '2026-05-04'")
    await changed(
        ledger,
        "ALTER TABLE ledger DETACH PARTITION ledger_20260504",
        "ALTER TABLE ledger_20260504 RENAME TO taken_away",
    )
    try:
        for command in commands:
            missing = await tokenfleet("ledger", *command)
            assert missing.exit_code == 1
            assert "no partition for 2026-05-04, which had 21 rows" in missing.output
    finally:
        await changed(
            ledger,
            "ALTER TABLE taken_away RENAME TO ledger_20260504",
            "ALTER TABLE ledger ATTACH PARTITION ledger_20260504 "
            "FOR VALUES FROM ('2026-05-04 00:00:00+00') TO ('2026-05-05 00:00:00+00')",
        )
    assert list(tmp_path.iterdir()) == []


# -- rows by command


def _csv(data: bytes) -> list[dict[str, Any]]:
    """What a reader that knows the columns makes of it."""
    rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    wanted = {field.name: field.type for field in msgspec.structs.fields(LedgerRow)}

    def value(name: str, text: str) -> Any:
        if name == "missed":
            return text.split()
        if not text and type(None) in get_args(wanted[name]):
            return None
        kinds = (wanted[name], *get_args(wanted[name]))
        if bool in kinds:
            return {"true": True, "false": False}[text]
        return int(text) if int in kinds else float(text) if float in kinds else text

    return [{name: value(name, text) for name, text in row.items()} for row in rows]


READERS: dict[str, Callable[[bytes], list[dict[str, Any]]]] = {
    ".csv": _csv,
    ".csv.gz": lambda data: _csv(gzip.decompress(data)),
    ".jsonl": lambda data: [json.loads(line) for line in data.splitlines()],
    ".jsonl.gz": lambda data: [json.loads(line) for line in gzip.decompress(data).splitlines()],
    ".parquet": lambda data: pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist(),
}


@pytest.mark.parametrize("suffix", READERS)
async def test_an_exported_file_has_every_row_whatever_its_form(
    tokenfleet: Command, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"rows{suffix}"
    result = await tokenfleet("ledger", "export", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert f"{len(ROWS):,} rows" in result.output
    expected = {row.request_id: json.loads(msgspec.json.encode(row)) for row in ROWS}
    exported = READERS[suffix](out.read_bytes())
    assert len(exported) == len(ROWS)
    assert {row["request_id"]: row for row in exported} == expected
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


async def test_an_export_has_only_the_rows_asked_for(tokenfleet: Command, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "rows.jsonl"
    arguments = ("--run", "bulk-12", "--from", "2026-05-05", "--pool", POOL, "--json")
    result = await tokenfleet("ledger", "export", "--out", str(out), *arguments)
    said = json.loads(result.output)
    assert said == {"path": str(out), "rows": 111, "bytes": out.stat().st_size}
    assert all(
        json.loads(line)["client_request_id"].startswith("bulk-12") for line in out.read_text().splitlines()
    )


async def test_an_export_that_cannot_be_leaves_no_file_and_says_why(
    tokenfleet: Command, tmp_path: Path
) -> None:
    there = tmp_path / "there.csv"
    there.write_text("kept")
    for out, more, message in (
        (there, (), "exists already"),
        (tmp_path / "rows.xlsx", (), "does not say the form"),
        (there / "rows.csv", (), "cannot be made a folder"),
        (tmp_path / "none.csv", ("--tenant", "nobody"), "no requests that match. No file was written"),
    ):
        result = await tokenfleet("ledger", "export", "--out", str(out), *more)
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())
    assert there.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == [there.name]
    replaced = await tokenfleet("ledger", "export", "--out", str(there), *DAY, "--replace")
    assert replaced.exit_code == 0
    assert len(_csv(there.read_bytes())) == 20


# -- over HTTP


KEYS_OF = {name: f"sk-{name}" for name in ("acme", "other", "bulk")}


@pytest.fixture(scope="module")
def ingress(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngressProcess]:
    async def add_tenants() -> None:
        bus = await Bus.connect(nats_server.settings("operator"), "operator")
        bucket = await bus.bucket(subjects.BUCKET_TENANTS)
        for name, key in KEYS_OF.items():
            tenant = Tenant(tenant=name, key_hashes=(hashlib.sha256(key.encode()).hexdigest(),))
            await bucket.put(subjects.token(name), msgspec.json.encode(tenant))
        await bus.drain()

    asyncio.run(add_tenants())
    process = ingress_process(nats_server.environment("ingress"), tmp_path_factory.mktemp("ingress"))
    process.start()
    yield process
    assert process.stop() == 0
    assert b"Traceback" not in process.log.read_bytes(), process.log.read_text()


@pytest.fixture
async def get(ingress: IngressProcess) -> AsyncIterator[Get]:
    """Asks as a tenant."""
    async with aiohttp.ClientSession(ingress.url) as session:

        async def get(key: str | None, path: str, /, **query: str) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {KEYS_OF[key]}"} if key else {}
            url = f"/v1/ledger/{path}"
            async with session.get(url, params=query, headers=headers) as response:
                return response.status, await response.json()

        yield get


@pytest.fixture
async def answering(nats_server: NatsServer, ledger: str) -> AsyncIterator[None]:
    async with accountant(nats_server, ledger):
        yield


@pytest.mark.usefixtures("answering")
async def test_a_tenants_report_has_its_own_requests_and_no_prices(get: Get, nats_server: NatsServer) -> None:
    async with policy(nats_server, gpu_hour_prices={"*": 1.0}) as bus:
        await asyncio.sleep(0.3)
        status, report = await get("acme", "report", by="tenant", run="", **{"from": "2026-05-04"})
        assert status == 200
        assert list(report["groups"]) == ["acme"]
        assert report["total"]["offered"] == 10
        assert report["total"]["cost"] is None
        assert report["total"]["waste"]["retried"]["prefill_tokens"] == 70
        question = ReportRequest(tenant="acme", group_by="tenant", priced=False)
        known = await bus.request(subjects.ledger_report(SITE), question, Report)
        assert report == json.loads(msgspec.json.encode(known))


@pytest.mark.usefixtures("answering")
async def test_a_tenant_reads_all_its_rows_page_by_page_and_nobody_elses(get: Get) -> None:
    seen: list[str] = []
    after: dict[str, str] = {}
    for _ in range(10):
        status, page = await get("other", "requests", limit="3", **after)
        assert status == 200
        assert {row["tenant"] for row in page["data"]} <= {"other"}
        assert len(page["data"]) <= 3
        seen += [row["request_id"] for row in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["next"]}
    assert sorted(seen) == sorted(f"other{number}" for number in range(10))

    status, page = await get("bulk", "requests", run="bulk-399", limit="1000")
    assert len(page["data"]) == 11
    assert (page["has_more"], page["next"]) == (False, None)


@pytest.mark.usefixtures("answering")
async def test_a_request_of_another_tenant_is_as_unknown_as_one_that_never_was(get: Get) -> None:
    status, row = await get("acme", "requests/acme2")
    assert status == 200
    assert (row["object"], row["request_id"], row["waste_cause"], row["missed"]) == (
        "ledger.request", "acme2", "late", ["ttft"],
    )  # fmt: skip
    status, row = await get("acme", "requests/acme-2")
    assert (status, row["request_id"]) == (200, "acme2")

    async def unknown(tenant: str, wanted: str) -> str:
        status, answer = await get(tenant, f"requests/{wanted}")
        assert status == 404
        return json.dumps(answer).replace(wanted, "ID")

    assert (
        await unknown("acme", "other2")
        == await unknown("acme", "other-2")
        == await unknown("acme", "nowhere")
    )
    status, theirs = await get("acme", "requests", after="other2:1")
    status_of_none, none = await get("acme", "requests", after="nowhere:1")
    assert status == status_of_none == 400
    assert json.dumps(theirs).replace("other2", "") == json.dumps(none).replace("nowhere", "")


@pytest.mark.usefixtures("answering")
async def test_bad_questions_are_answered_in_the_shape_of_all_errors(get: Get) -> None:
    for tenant, path, query, status, code, param in (
        (None, "report", {}, 401, "invalid_api_key", None),
        ("acme", "report", {"tenant": "other"}, 400, "invalid_value", "tenant"),
        ("acme", "report", {"by": "colour"}, 400, "invalid_value", "by"),
        ("acme", "report", {"colour": "red"}, 400, "unknown_parameter", "colour"),
        ("acme", "report", {"limit": "0"}, 400, "invalid_value", "limit"),
        ("acme", "report", {"sort": "cost"}, 400, "invalid_value", None),
        ("acme", "report", {"from": "2026-05-05", "to": "2026-05-04"}, 400, "invalid_value", None),
        ("acme", "report", {"last": "1h", "from": "1h"}, 400, "invalid_value", "last"),
        ("acme", "report", {"last": "soon"}, 400, "invalid_value", "last"),
        ("acme", "report", {"pool": "a\0b"}, 400, "invalid_value", None),
        ("acme", "requests", {"to": "x"}, 400, "invalid_value", "to"),
        ("acme", "requests", {"after": "x"}, 400, "invalid_value", "after"),
        ("acme", "requests", {"limit": "1001"}, 400, "invalid_value", "limit"),
        ("acme", "requests/acme2", {"by": "class"}, 400, "unknown_parameter", "by"),
    ):
        answered, body = await get(tenant, path, **query)
        said = body["error"]
        assert (answered, said["code"], said["param"]) == (status, code, param), (path, query, said)
        assert said["message"]
    same = await get("acme", "report", tenant="acme")
    assert same[0] == 200


async def test_without_an_accountant_a_tenant_is_told_to_come_back(get: Get) -> None:
    begun_s = time.monotonic()
    status, body = await get("acme", "report")
    assert (status, body["error"]["code"]) == (503, "ledger_unavailable")
    assert time.monotonic() - begun_s < 5.0


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃ ").split("│") if cell.strip()]
