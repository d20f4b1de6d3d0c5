"""`tokenfleet ledger export`."""

import asyncio
import time
from pathlib import Path

import click
import msgspec

from goodput_accountant.audit.options import Stages, state_dir_option
from goodput_accountant.reporting.export import PAGE_ROWS, export_rows, make_room
from goodput_accountant.reporting.row_files import SUFFIXES, writes
from goodput_accountant.reporting.selection import (
    ANSWER_TIMEOUT_S,
    Selection,
    ledger_bus,
    selecting,
    told,
)
from tokenfleet import subjects
from tokenfleet.contracts.ledger import LedgerRows, RowsRequest

EXAMPLES = """\b
Examples:
  tokenfleet ledger export --from 2026-05-04 --to 2026-05-05 --out may4.parquet
  tokenfleet ledger export --tenant acme --last 7d --out acme.csv.gz
  tokenfleet ledger export --run bench-7 --out bench.jsonl
"""


@click.command("export", epilog=EXAMPLES)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help=f"The file; its name says the form: {', '.join(SUFFIXES)}.",
)
@click.option("--replace", is_flag=True, help="Write the file anew if it exists.")
@selecting
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a line.")
@state_dir_option
def export_command(selection: Selection, out: Path, replace: bool, as_json: bool, state_dir: Path) -> None:
    """Write rows of the ledger, one for each request, to CSV, JSON Lines or Parquet.

    The file appears under its name only when it is whole. Rows are in the order of their days, those of a day in the order
    they were written; of a request that was corrected while the export ran both rows may be there: the one with the higher
    `revision` counts.
    """
    if not writes(out):
        raise click.BadParameter(
            f"{out.name} does not say the form: end it in one of {', '.join(SUFFIXES)}.", param_hint="--out"
        )
    if selection.to_ns is None:  # else an export of a busy ledger would never end
        selection = msgspec.structs.replace(selection, to_ns=time.time_ns())
    request = RowsRequest(**msgspec.structs.asdict(selection), limit=PAGE_ROWS)
    with told():
        make_room(out, replace=replace)
        rows = asyncio.run(_export(request, out, state_dir))
    written = out.stat().st_size
    if as_json:
        said = msgspec.json.encode({"path": str(out), "rows": rows, "bytes": written})
        click.echo(msgspec.json.format(said).decode())
    else:
        click.echo(f"{out}: {rows:,} rows, {written:,} bytes")


async def _export(request: RowsRequest, out: Path, state_dir: Path) -> int:
    with Stages() as progress:
        async with ledger_bus(state_dir) as (bus, site):

            async def ask(page: RowsRequest) -> LedgerRows:
                return await bus.request(
                    subjects.ledger_rows(site), page, LedgerRows, timeout_s=ANSWER_TIMEOUT_S
                )

            return await export_rows(ask, request, out, progress)
