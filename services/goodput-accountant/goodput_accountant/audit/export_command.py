"""`tokenfleet audit export`."""

import asyncio
from pathlib import Path
from typing import cast

import click
import msgspec

from goodput_accountant.audit.export import Exported, Period, export
from goodput_accountant.audit.options import (
    Stages,
    check_order,
    from_option,
    moment,
    operator_bus,
    state_dir_option,
    to_option,
)

EXAMPLES = """\b
Examples:
  tokenfleet audit export --out kept/                         all that the stream holds, a file per hour
  tokenfleet audit export --from 2026-05-04 --to 2026-05-05 --per day --out kept/
  tokenfleet audit export --from 30m --out incident.jsonl.gz  one file
  zcat kept/*.jsonl.gz | jq -c 'select(.subject) | .event'    read by any tool
"""


@click.command("export", epilog=EXAMPLES)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help="A folder for one file per hour or day, or a file whose name ends in .jsonl.gz for all in one.",
)
@from_option(
    "What was recorded from here on: ISO 8601 (UTC unless it says otherwise), or a duration ago. Default: all."
)
@to_option("Until here. Default: now.")
@click.option(
    "--per", type=click.Choice(["hour", "day"]), default="hour", show_default=True, help="One file for each."
)
@click.option("--replace", is_flag=True, help="Write files anew that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@state_dir_option
def export_command(
    out: Path,
    from_ns: int | None,
    to_ns: int | None,
    per: str,
    replace: bool,
    as_json: bool,
    state_dir: Path,
) -> None:
    """Write the recorded events to gzip-compressed JSON Lines, which `audit verify` and `whatif` read years later.

    A file appears under its name only when it is whole; its last line has the number of messages and their SHA-256.
    """
    check_order(from_ns, to_ns)

    async def run() -> list[Exported]:
        with Stages() as progress:
            async with operator_bus(state_dir) as bus:
                return await export(
                    bus, out, from_ns, to_ns, cast(Period, per), replace=replace, progress=progress
                )

    exported = asyncio.run(run())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(exported, enc_hook=str)).decode())
        return
    for each in exported:
        span = f"{moment(each.span.from_ns)} to {moment(each.span.to_ns)}"
        click.echo(f"{each.path}: {each.messages:,} messages, {span}")
