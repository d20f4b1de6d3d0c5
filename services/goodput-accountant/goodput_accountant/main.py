"""The goodput accountant: events in, ledger rows and goodput windows out, reports on request."""

import asyncio
import gc

import asyncpg
import sqlalchemy.exc

from goodput_accountant.dead_letters import DeadLetters
from goodput_accountant.ingest import Ingest
from goodput_accountant.ledger import AWAY, Ledger
from goodput_accountant.metrics import Metrics
from goodput_accountant.migrations import migrate
from goodput_accountant.reports import Reports
from goodput_accountant.retention import Retention
from goodput_accountant.roller import Roller
from goodput_accountant.rows import RowPages
from goodput_accountant.settings import AccountantSettings
from goodput_accountant.sweeper import Sweeper
from goodput_accountant.windows import WindowPublisher
from tokenfleet import subjects
from tokenfleet.contracts.ledger import LedgerLookup, ReportRequest, RowsRequest
from tokenfleet.errors import ConfigurationError, UnavailableError
from tokenfleet.live import LivePolicy
from tokenfleet.service import Service, run_service

DURABLE = "accountant"
QUEUE = "accountant"
COLLECT_EVERY = 100_000
"""Objects made and still there."""
BATCHES_AT_ONCE = 2
"""One is prepared while Postgres writes the other; the days' locks keep them in order."""
POSTGRES_RETRY_S = 0.5
CONSUMER_RETRY_S = 1.0
BACKLOG_EVERY_S = 5.0
SHORTEST_SWEEP_S = 0.5
LONGEST_SWEEP_S = 30.0
ROLL_EVERY_S = 1.0
RETENTION_EVERY_S = 3_600.0

# How a Postgres that is not there yet, or goes away during the migration, shows itself.
AWAY_AT_START = (*AWAY, sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError)


def main() -> None:
    """Run the service, configured by the environment."""
    run_service("goodput-accountant", AccountantSettings, _start_process)


async def _start_process(service: Service[AccountantSettings]) -> None:
    await start(service)
    # A batch is some ten thousand objects, all of which go with their last reference: looking for cycles among them
    # and in all that was imported took a quarter of the CPU.
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)


async def start(service: Service[AccountantSettings]) -> None:
    """Bring the schema up to date, then take in events, answer reports and publish windows.

    Raises:
        ConfigurationError: this is not the fleet's home site.
    """
    settings = service.settings
    if settings.site != settings.fleet_sites[0]:
        raise ConfigurationError(
            f"The ledger is kept at the fleet's home site, {settings.fleet_sites[0]}, which sources the events of this "
            f"one, {settings.site}. Run the accountant there."
        )
    ledger = await _open_ledger(service)
    metrics = Metrics(service.observability.meter)
    dead_letters = DeadLetters(service.bus, metrics, service.clock, settings.site)
    ingest = Ingest(ledger, dead_letters, metrics, service.observability, service.clock)
    sweeper = Sweeper(
        ledger,
        service.bus,
        dead_letters,
        metrics,
        service.clock,
        durable=DURABLE,
        lost_after_s=settings.lost_after_s,
    )
    working = [asyncio.create_task(_consume(service, ingest)), asyncio.create_task(_sweep(service, sweeper))]

    async def stop() -> None:
        # Before the ledger closes: a batch cut off here is unacknowledged and delivered again.
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await ledger.close()

    service.on_stop(stop)
    service.health = lambda: {
        "postgres": "connected" if ledger.available else "away",
        "ledger_rows_written": ingest.rows_written,
        "closed_as_lost": sweeper.closed,
    }
    policy = LivePolicy()
    await policy.watch(service.bus)
    reports = Reports(ledger, settings.report_max_rows, lambda: policy.current.gpu_hour_prices)
    pages = RowPages(ledger)
    broker = await service.broker()
    for site in settings.fleet_sites:
        # One ledger answers to every site, and each site's SLOMax steers by its own goodput.
        await service.bus.serve(subjects.ledger_report(site), ReportRequest, reports.answer, queue=QUEUE)
        await service.bus.serve(subjects.ledger_rows(site), RowsRequest, pages.answer, queue=QUEUE)
        await service.bus.serve(subjects.ledger_lookup(site), LedgerLookup, reports.lookup, queue=QUEUE)
        windows = WindowPublisher(ledger, broker, metrics, service.clock, site, settings.goodput_window_s)
        service.every(settings.goodput_window_s / 4, windows.publish)
    service.every(ROLL_EVERY_S, Roller(ledger, service.clock, lambda: ingest.rows_written).turn)
    service.every(RETENTION_EVERY_S, Retention(ledger, service.clock, settings.ledger_keep_days).sweep)
    _watch_backlog(service, metrics)


async def _consume(service: Service[AccountantSettings], ingest: Ingest) -> None:
    while True:
        try:
            await service.bus.consume(
                subjects.STREAM_REQUESTS,
                DURABLE,
                subjects.TERMINAL_SUBJECTS,
                ingest,
                batch=service.settings.ledger_batch,
                concurrency=BATCHES_AT_ONCE,
            )
        except Exception as error:
            service.log.error("event stream cannot be read; trying again", error=repr(error))
            await asyncio.sleep(CONSUMER_RETRY_S)


async def _sweep(service: Service[AccountantSettings], sweeper: Sweeper) -> None:
    every_s = min(max(service.settings.lost_after_s / 10, SHORTEST_SWEEP_S), LONGEST_SWEEP_S)
    while True:
        await asyncio.sleep(every_s)
        try:
            await sweeper.sweep()
        except Exception:
            service.log.exception("requests without an end cannot be closed; trying again")


def _watch_backlog(service: Service[AccountantSettings], metrics: Metrics) -> None:
    backlog: int | None = None

    async def read() -> None:
        nonlocal backlog
        try:
            backlog = await service.bus.consumer_backlog(subjects.STREAM_REQUESTS, DURABLE)
        except UnavailableError:
            backlog = None

    metrics.observe_backlog(lambda: backlog)
    service.every(BACKLOG_EVERY_S, read)


async def _open_ledger(service: Service[AccountantSettings]) -> Ledger:
    """Wait for Postgres, which may start after this service, and bring its schema up to date.

    Raises:
        UnavailableError: it did not answer within `postgres_wait_s`.
        ConfigurationError: it refuses the credentials, or there are no migrations.
    """
    settings = service.settings
    deadline_s = service.clock.wall_s() + settings.postgres_wait_s
    dsn = settings.postgres_dsn.get_secret_value()
    said = False
    while True:
        try:
            await migrate(await asyncpg.connect(dsn, timeout=5), settings.migrations_dir)
            return await Ledger.open(dsn)
        except (
            asyncpg.InvalidAuthorizationSpecificationError,
            asyncpg.ClientConfigurationError,
            ValueError,
        ) as error:
            raise ConfigurationError(f"TOKENFLEET_POSTGRES_DSN does not work: {error}") from error
        except AWAY_AT_START as error:
            if service.clock.wall_s() >= deadline_s:
                raise UnavailableError(
                    f"Postgres did not answer within {settings.postgres_wait_s:.0f} s: {error!r}. Check "
                    "TOKENFLEET_POSTGRES_DSN and that the server runs."
                ) from error
            if not said:
                service.log.warning(
                    "waiting for postgres", up_to_s=settings.postgres_wait_s, error=repr(error)
                )
                said = True
            await asyncio.sleep(POSTGRES_RETRY_S)
