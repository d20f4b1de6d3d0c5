"""`tokenfleet ledger`: questions to the ledger, asked over NATS."""

import asyncio
import sys
import time
from collections.abc import Callable

import click
import msgspec
from rich.console import Console
from rich.table import Table

from goodput_accountant.dead_letters_command import dead_letters
from goodput_accountant.retention_command import retention
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.ledger import Report, ReportRequest, Summary
from tokenfleet.errors import TokenFleetError
from tokenfleet.running_stack import operator_settings
from tokenfleet.time_options import Duration

REPORT_TIMEOUT_S = 30.0
ABSENT = "-"

COLUMNS: tuple[tuple[str, Callable[[Summary], float | None], str], ...] = (
    ("offered", lambda s: s.offered, "{:,.0f}"),
    ("completed", lambda s: s.completed, "{:,.0f}"),
    ("rejected", lambda s: s.rejected, "{:,.0f}"),
    ("timed out", lambda s: s.timed_out, "{:,.0f}"),
    ("cancelled", lambda s: s.cancelled, "{:,.0f}"),
    ("failed", lambda s: s.failed, "{:,.0f}"),
    ("met, of offered", lambda s: s.attainment_offered, "{:.1%}"),
    ("met, of admitted", lambda s: s.attainment_admitted, "{:.1%}"),
    ("goodput tok/s", lambda s: s.goodput_tokens_per_s, "{:,.0f}"),
    ("output tok/s", lambda s: s.output_tokens_per_s, "{:,.0f}"),
    ("wasted tokens", lambda s: s.wasted_tokens, "{:,.0f}"),
    ("prefix reuse", lambda s: s.prefix_reuse, "{:.1%}"),
    ("TTFT P50 s", lambda s: s.ttft_s.p50, "{:.2f}"),
    ("TTFT P95 s", lambda s: s.ttft_s.p95, "{:.2f}"),
    ("TTFT P99 s", lambda s: s.ttft_s.p99, "{:.2f}"),
    ("TPOT P50 s", lambda s: s.tpot_s.p50, "{:.3f}"),
    ("TPOT P95 s", lambda s: s.tpot_s.p95, "{:.3f}"),
    ("TPOT P99 s", lambda s: s.tpot_s.p99, "{:.3f}"),
    ("e2e P50 s", lambda s: s.e2e_s.p50, "{:.2f}"),
    ("e2e P95 s", lambda s: s.e2e_s.p95, "{:.2f}"),
)


@click.group()
def ledger() -> None:
    """What requests were worth: reports from the ledger."""


ledger.add_command(dead_letters)


ledger.add_command(retention)


@ledger.command()
@click.option(
    "--last", type=Duration(), metavar="DURATION", help="Requests submitted in the last 30s, 15m, 1h, 7d."
)
@click.option(
    "--run", "prefix", metavar="PREFIX", help="Requests whose client request id begins so (a replay)."
)
@click.option("--pool", metavar="MODEL@VERSION", help="Requests of one pool.")
@click.option("--tenant", help="Requests of one tenant.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def report(
    last: float | None, prefix: str | None, pool: str | None, tenant: str | None, as_json: bool
) -> None:
    """Goodput, attainment and latencies of the requests chosen, in all and per class."""
    request = ReportRequest(
        client_request_id_prefix=prefix,
        from_ns=None if last is None else time.time_ns() - round(last * 1e9),
        pool=pool,
        tenant=tenant,
    )
    try:
        answer = asyncio.run(_ask(request))
    except TokenFleetError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer)).decode() + "\n")
    elif answer.total.ledger_rows == 0:
        click.echo("The ledger has no requests that match.")
    else:
        Console().print(report_table(answer))


async def _ask(request: ReportRequest) -> Report:
    settings = operator_settings()
    bus = await Bus.connect(settings, "ledger")
    try:
        return await bus.request(
            subjects.ledger_report(settings.site), request, Report, timeout_s=REPORT_TIMEOUT_S
        )
    finally:
        await bus.drain()


def report_table(report: Report) -> Table:
    """One column for all requests and one per class."""
    table = Table(title=f"Ledger: {report.total.duration_s:,.1f} engine seconds", title_justify="left")
    table.add_column("")
    groups = {"all": report.total, **report.classes}
    for name in groups:
        table.add_column(name, justify="right")
    for label, value, written in COLUMNS:
        figures = (value(summary) for summary in groups.values())
        table.add_row(label, *(ABSENT if figure is None else written.format(figure) for figure in figures))
    for name, error in (("TTFT", report.prediction.ttft), ("TPOT", report.prediction.tpot)):
        if error.n:
            off = f"{error.median_ape:.1%} / {error.p90_ape:.1%}"
            table.add_row(f"{name} predicted, off by (median / P90)", off)
    return table
