"""`tokenfleet ledger dead-letters`."""

import asyncio
import time
from collections import Counter, deque
from contextlib import aclosing
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from goodput_accountant.audit.options import moment, operator_bus, state_dir_option
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.bus.codec import decode
from tokenfleet.contracts.dead_letters import DeadLetter
from tokenfleet.errors import ContractError, TokenFleetError
from tokenfleet.terminal import output
from tokenfleet.time_options import Duration

SHOWN_BYTES = 2_000
"""Of a payload in the table; --json has all that was kept."""

EXAMPLES = """\b
Examples:
  tokenfleet ledger dead-letters                       what was refused in the last 30 days, and why
  tokenfleet ledger dead-letters --last 1h --limit 5
  tokenfleet ledger dead-letters --payload --json      with the events themselves (Base64)
"""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of a time."""

    total: int
    by_reason: dict[str, int]
    letters: list[DeadLetter]
    """The newest, newest first."""
    unreadable: int
    """Letters that this version cannot read."""


@click.command("dead-letters", epilog=EXAMPLES)
@click.option(
    "--last",
    type=Duration(),
    metavar="DURATION",
    help="Those of the last 30s, 15m, 1h, 7d. Default: all that are kept.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="How many to list.",
)
@click.option("--payload", is_flag=True, help="Print the refused events too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@state_dir_option
def dead_letters(last: float | None, limit: int, payload: bool, as_json: bool, state_dir: Path) -> None:
    """Events that the ledger could not book: how many by reason, and the newest of them.

    They are kept in the stream DEAD_LETTERS for 30 days, at most 256 MiB. Counts are of all in the time, listed or not.
    """
    try:
        found = asyncio.run(_read(last, limit, state_dir))
    except TokenFleetError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_as_json(found, payload))).decode())
    else:
        _show(found, output(), payload)


async def _read(last: float | None, limit: int, state_dir: Path) -> Found:
    from_ns = 0 if last is None else time.time_ns() - round(last * 1e9)
    async with operator_bus(state_dir) as bus:
        return await find(bus, from_ns, limit)


async def find(bus: Bus, from_ns: int, limit: int) -> Found:
    """The dead letters that were stored from a moment on.

    Raises:
        UnavailableError: NATS does not answer.
    """
    newest: deque[DeadLetter] = deque(maxlen=limit)
    seen: set[str] = set()
    reasons: Counter[str] = Counter()
    unreadable = 0
    reading = bus.read_stored(subjects.STREAM_DEAD_LETTERS, [subjects.ALL_DEAD_LETTERS], from_ns)
    async with aclosing(reading) as stored_letters:
        async for stored in stored_letters:
            try:
                letter = decode(stored.data, DeadLetter)
            except ContractError:
                unreadable += 1
                continue
            # The stream recognises a repetition within an hour; this does after any outage.
            if letter.letter_id not in seen:
                seen.add(letter.letter_id)
                reasons[letter.reason] += 1
                newest.append(letter)
    return Found(
        total=reasons.total(),
        by_reason=dict(reasons.most_common()),
        letters=list(reversed(newest)),
        unreadable=unreadable,
    )


def _as_json(found: Found, payload: bool) -> dict[str, object]:
    whole = msgspec.to_builtins(found)
    if not payload:
        for letter in whole["letters"]:
            del letter["payload"]
    return whole


def _show(found: Found, console: Console, payload: bool) -> None:
    if found.unreadable:
        console.print(
            f"{found.unreadable:,} dead letters are of another version and not shown.", highlight=False
        )
    if not found.total:
        console.print("No dead letters.", highlight=False)
        return
    counts = Table(title=f"Dead letters: {found.total:,}", title_justify="left")
    counts.add_column("reason")
    counts.add_column("events", justify="right")
    for reason, count in found.by_reason.items():
        counts.add_row(reason.replace("_", " "), f"{count:,}")
    console.print(counts)
    if found.letters:
        console.print(_letters_table(found))
    if payload:
        for letter in found.letters:
            text = letter.payload[:SHOWN_BYTES].decode(errors="backslashreplace")
            more = f" … ({letter.payload_bytes:,} bytes)" if letter.payload_bytes > SHOWN_BYTES else ""
            console.print(
                f"{letter.stream} {letter.sequence}: {_printable(text)}{more}", highlight=False, markup=False
            )


def _letters_table(found: Found) -> Table:
    table = Table(title=f"The newest {len(found.letters):,}", title_justify="left")
    for heading in ("refused", "site", "number", "subject", "reason", "what is wrong"):
        table.add_column(heading, overflow="fold")
    for letter in found.letters:
        row = (
            moment(letter.time_ns),
            letter.site,
            f"{letter.sequence:,}",
            letter.subject,
            letter.reason.replace("_", " "),
            letter.detail,
        )
        table.add_row(*(Text(_printable(cell)) for cell in row))
    return table


def _printable(text: str) -> str:
    """Without what could steer the terminal: it comes from whoever sent a corrupt event."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
