"""Which requests a command is about, and asking the accountant about them over NATS."""

import functools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from goodput_accountant.audit.options import check_order, from_option, to_option
from tokenfleet.bus import Bus
from tokenfleet.errors import TokenFleetError
from tokenfleet.logs import quiet_logs
from tokenfleet.running_stack import operator_settings
from tokenfleet.time_options import Duration

ANSWER_TIMEOUT_S = 30.0
NOTHING = "The ledger has no requests that match."


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Requests, by when they were submitted, whose they were, where they ran and what the client called them."""

    from_ns: int | None
    to_ns: int | None
    client_request_id_prefix: str | None
    pool: str | None
    tenant: str | None


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    from_option(
        "Requests submitted from here on: ISO 8601 (UTC unless it says otherwise), or a duration ago. Default: all."
    ),
    to_option("Requests submitted before this. Default: now."),
    click.option(
        "--last", type=Duration(), metavar="DURATION", help="Requests submitted in the last 30s, 15m, 1h, 7d."
    ),
    click.option(
        "--run",
        "prefix",
        metavar="PREFIX",
        help="Requests whose client request id begins so (a replay, a batch).",
    ),
    click.option("--pool", metavar="MODEL@VERSION", help="Requests of one pool."),
    click.option("--tenant", metavar="NAME", help="Requests of one tenant."),
)


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose requests; it gets them as `selection`.

    Raises:
        click.UsageError: they contradict each other.
    """

    @functools.wraps(command)
    def with_selection(
        *,
        from_ns: int | None,
        to_ns: int | None,
        last: float | None,
        prefix: str | None,
        pool: str | None,
        tenant: str | None,
        **others: Any,
    ) -> None:
        if last is not None:
            if from_ns is not None or to_ns is not None:
                raise click.UsageError("--last is a span of its own: give it, or --from and --to.")
            from_ns = max(time.time_ns() - round(last * 1e9), 0)
        check_order(from_ns, to_ns)
        chosen = Selection(
            from_ns=from_ns, to_ns=to_ns, client_request_id_prefix=prefix, pool=pool, tenant=tenant
        )
        command(selection=chosen, **others)

    for option in reversed(OPTIONS):
        with_selection = option(with_selection)
    return with_selection


@asynccontextmanager
async def ledger_bus(state_dir: Path) -> AsyncIterator[tuple[Bus, str]]:
    """NATS as the operator, and the site whose accountant answers.

    Raises:
        UnavailableError: no stack runs from the folder, or NATS cannot be reached.
    """
    quiet_logs()
    settings = operator_settings(state_dir)
    bus = await Bus.connect(settings, "ledger")
    try:
        yield bus, settings.site
    finally:
        await bus.drain()


@contextmanager
def told() -> Iterator[None]:
    """What goes wrong becomes the command's message."""
    try:
        yield
    except TokenFleetError as error:
        raise click.ClickException(str(error)) from error
