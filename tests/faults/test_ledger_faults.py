"""Whatever dies under it, the ledger ends up as exactly what the events say: nothing lost, nothing counted twice.

Real servers and whole accountants, under load. The outages are short here; with TOKENFLEET_TEST_LEDGER_FAULTS set they
last a minute (`make test-faults-ledger`).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from accountants import ended_request, publish
from conftest import Servers
from ledger_world import AccountantProcess, LedgerServers, LedgerWorld, ledger_world, load, until

from tokenfleet.bus import Bus

HEAVY = bool(os.environ.get("TOKENFLEET_TEST_LEDGER_FAULTS"))
OUTAGE_S = 60.0 if HEAVY else 5.0
KILLS = 5 if HEAVY else 1
RATE = 2_000 if HEAVY else 500
"""Requests a second under load."""
DISK = "192m"
ON_SMALL_DISK = 500
"""Requests a second, few enough for the audit of all of them to find room there, too."""
BATCH = 300
SMALL_BATCH = 50

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600 if HEAVY else 120)]


@pytest.fixture(scope="module")
def ledger_servers(servers: Servers) -> Iterator[LedgerServers]:
    started = LedgerServers.start(servers, "ledger-faults")
    yield started
    started.stop()


@pytest.fixture
async def world(ledger_servers: LedgerServers) -> AsyncIterator[LedgerWorld]:
    async with ledger_world(ledger_servers) as world:
        yield world


async def check_exact(world: LedgerWorld, requests: int) -> None:
    """Every request is one row, as the rules say of its event, and every chain is whole."""
    verdict = await world.verdict()
    assert list(verdict.differences) == list(verdict.breaks) == list(verdict.notes) == []
    assert verdict.unbookable == verdict.uncovered == 0
    assert verdict.rows == requests


# -- an accountant is killed

COMMIT_GATE = 1
HOLD_COMMITS = f"""
CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared({COMMIT_GATE}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON ledger_days
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_gate();
"""
STANDS = """
SELECT count(*) > 0 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1
"""


class Gate:
    """Makes accountants stand still inside their transactions."""

    def __init__(self, connection: asyncpg.Connection, watching: asyncpg.Connection) -> None:
        """
        Args:
            connection: holds the locks.
            watching: sees who waits; not the same one, since what a transaction sees of that is fixed.
        """
        self._connection, self._watching = connection, watching

    @contextlib.asynccontextmanager
    async def before_rows(self) -> AsyncIterator[None]:
        """With the day locked and its head moved, and no row written yet."""
        async with self._connection.transaction():
            await self._connection.execute("LOCK TABLE ledger IN SHARE MODE")
            yield

    @contextlib.asynccontextmanager
    async def in_commit(self) -> AsyncIterator[None]:
        """With everything written, in the middle of the commit."""
        await self._connection.execute("SELECT pg_advisory_lock($1)", COMMIT_GATE)
        yield
        await self._connection.execute("SELECT pg_advisory_unlock($1)", COMMIT_GATE)

    async def until_one_stands(self, statement: str) -> None:
        """Return once an accountant waits in such a statement."""

        async def stands() -> bool:
            return bool(await self._watching.fetchval(STANDS, f"{statement}%"))

        await until(stands, f"an accountant waits in {statement}")

    async def until_nobody_stands(self) -> None:
        """Return once Postgres is done with what it was told."""

        async def gone() -> bool:
            others = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
            )
            return await self._watching.fetchval(others) == 1

        await until(gone, "what accountants told Postgres has ended")


@pytest.fixture
async def gate(world: LedgerWorld) -> AsyncIterator[Gate]:
    """Where there is a schema, and a partition with one row."""
    accountant = await world.accountant()
    await publish(world.operator, [ended_request("first")])
    await world.until_acknowledged()
    await world.until_rows(1)
    accountant.kill()
    connection, watching = await asyncpg.connect(world.dsn), await asyncpg.connect(world.dsn)
    await connection.execute(HOLD_COMMITS)
    yield Gate(connection, watching)
    for each in (connection, watching):
        await each.close()


async def test_an_accountant_may_be_killed_anywhere(world: LedgerWorld, gate: Gate):
    ingress = await Bus.connect(world.servers.nats_server.settings("ingress"), "test")
    requests = 1

    async def more_requests() -> None:
        nonlocal requests
        await publish(ingress, [ended_request(f"killed-{requests + number}") for number in range(BATCH)])
        requests += BATCH

    # Before the commit: what it had written is gone with it.
    accountant = await world.accountant()
    async with gate.before_rows():
        await more_requests()
        await gate.until_one_stands("COPY")
        accountant.kill()
    await gate.until_nobody_stands()
    assert await world.rows() == 1
    assert await world.backlog() == BATCH

    # While Postgres commits: it does, and nobody ever hears of it.
    accountant = await world.accountant()
    async with gate.in_commit():
        await more_requests()
        await gate.until_one_stands("COMMIT")
        accountant.kill()
    await gate.until_nobody_stands()
    committed = await world.rows()
    assert committed > 1
    assert await world.backlog() == requests - 1

    # After the commit, before any acknowledgement.
    accountant = await world.accountant()
    async with gate.in_commit():
        await more_requests()
        await gate.until_one_stands("COMMIT")
        accountant.signal(signal.SIGSTOP)
    await world.until_rows(committed + 1)
    accountant.kill()
    assert await world.backlog() == requests - 1

    await ingress.drain()
    await world.accountant()
    await check_exact(world, requests)


async def test_of_two_busy_accountants_one_is_killed(world: LedgerWorld):
    both = [await world.accountant(ledger_batch=SMALL_BATCH) for _ in range(2)]
    ingress = await Bus.connect(world.servers.nats_server.settings("ingress"), "test")
    requests = 8 * RATE
    await publish(ingress, [ended_request(f"shared-{number}") for number in range(requests)])
    await ingress.drain()
    await world.until_rows(RATE)
    both[0].kill()
    assert await world.backlog() > SMALL_BATCH  # what it had in hand is among these
    await check_exact(world, requests)


# -- a server goes away


async def until_it_sees_postgres(accountant: AccountantProcess, *, there: bool) -> None:
    async def seen() -> bool:
        return await accountant.sees_postgres() == there

    await until(
        seen, f"the accountant says that Postgres is {'back' if there else 'away'}", timeout_s=OUTAGE_S + 60
    )


async def test_postgres_crashes_and_stays_away(world: LedgerWorld):
    accountant = await world.accountant()
    postgres, run = world.servers.postgres, world.servers.servers.run
    async with load(world, rate=RATE) as requests:
        await world.until_rows(RATE)
        assert postgres.pid is not None
        os.kill(postgres.pid, signal.SIGKILL)
        await asyncio.to_thread(run, postgres.stop())
        await until_it_sees_postgres(accountant, there=False)
        await asyncio.sleep(OUTAGE_S)
        written = requests.published
        await asyncio.to_thread(run, postgres.start())
        await world.until_rows(written)
    await check_exact(world, requests.published)
    await until_it_sees_postgres(accountant, there=True)


async def test_nats_is_killed_and_comes_back_with_what_it_had_stored(world: LedgerWorld):
    await world.accountant()
    nats = world.servers.nats
    async with load(world, rate=RATE) as requests:
        for _ in range(KILLS):
            await world.until_rows(requests.published + RATE)
            assert nats.pid is not None
            os.kill(nats.pid, signal.SIGKILL)  # its keeper starts it again
        await world.until_rows(requests.published + RATE)
    await check_exact(world, requests.published)


# -- the disk is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a fixed size."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command to make a small disk with")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def on_small_disk(servers: Servers, small_disk: Path) -> Iterator[LedgerServers]:
    started = LedgerServers.start(servers, "small-disk", postgres_folder=small_disk / "postgres")
    yield started
    started.stop()


def fill(disk: Path) -> Path:
    """Take all the room there is."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return ballast


async def test_the_disk_of_postgres_is_full(on_small_disk: LedgerServers, small_disk: Path):
    async with ledger_world(on_small_disk) as world:
        accountant = await world.accountant()
        async with load(world, rate=ON_SMALL_DISK) as requests:
            await world.until_rows(ON_SMALL_DISK)
            ballast = fill(small_disk)
            await until_it_sees_postgres(accountant, there=False)
            await asyncio.sleep(OUTAGE_S)
            assert not await accountant.sees_postgres()
            assert "No space left on device" in on_small_disk.postgres.spec.log_path.read_text()
            stored = requests.published
            ballast.unlink()
            await world.until_rows(stored)
        await check_exact(world, requests.published)
        await until_it_sees_postgres(accountant, there=True)
