"""The supervisor: keeps processes running, stops them in order and within bounds, leaves none behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from console.process import ProcessSpec
from console.supervisor import Supervisor
from tokenfleet.errors import UnavailableError

pytestmark = pytest.mark.integration


def shell(folder: Path, name: str, script: str, **fields: object) -> ProcessSpec:
    fields = {"stop_timeout_s": 2.0, **fields}
    return ProcessSpec(
        name=name,
        command=("/bin/sh", "-c", script),
        environment={"PATH": os.defpath},
        log_path=folder / f"{name}.log",
        directory=folder,
        **fields,  # pyright: ignore[reportArgumentType]
    )


def runs(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


class Fixture:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[str] = []
        self.supervisor = Supervisor(self.reports.append)

    def pid(self, name: str) -> int:
        return self.supervisor.processes[name].pid or 0


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncIterator[Fixture]:
    fixture = Fixture(tmp_path)
    yield fixture
    await fixture.supervisor.stop()


async def test_a_process_that_dies_is_restarted_and_the_report_says_who_how_and_what_it_said(
    fixture: Fixture,
):
    await fixture.supervisor.start([shell(fixture.folder, "worker", "echo last words; exec sleep 60")])
    first = fixture.pid("worker")
    await eventually(lambda: "last words" in (fixture.folder / "worker.log").read_text())
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: fixture.pid("worker") not in (0, first))
    assert fixture.supervisor.processes["worker"].restarts == 1
    assert "worker died (killed by SIGKILL)" in fixture.reports[0]
    assert "last words" in fixture.reports[0]


async def test_a_process_that_keeps_dying_is_restarted_less_and_less_often(fixture: Fixture):
    await fixture.supervisor.start([shell(fixture.folder, "worker", "date +%s%N >> starts; exit 3")])
    starts = fixture.folder / "starts"
    await eventually(lambda: starts.exists() and len(starts.read_text().split()) >= 4)
    times = [int(line) for line in starts.read_text().split()]
    gaps_s = [(later - earlier) / 1e9 for earlier, later in pairwise(times)]
    assert all(gap_s >= 0.2 * 2**restart for restart, gap_s in enumerate(gaps_s))


async def test_start_waits_until_a_process_is_ready(fixture: Fixture):
    ready = fixture.folder / "ready"
    await fixture.supervisor.start(
        [shell(fixture.folder, "server", "sleep 0.3; touch ready; exec sleep 60", ready=ready.exists)]
    )
    assert ready.exists()


async def test_a_process_that_ends_before_it_is_ready_fails_the_start_with_its_log_and_advice(
    fixture: Fixture,
):
    script = "echo port 80 is taken >&2; exit 1"
    spec = shell(fixture.folder, "server", script, ready=lambda: False, advice="Choose another port.")
    with pytest.raises(UnavailableError) as failure:
        await fixture.supervisor.start([spec])
    message = str(failure.value)
    assert "server ended before it was ready (exit status 1)" in message
    assert "port 80 is taken" in message
    assert "Choose another port." in message


async def test_a_process_that_is_never_ready_fails_the_start_and_does_not_stay(fixture: Fixture):
    script = "echo $$ > pid; exec sleep 60"
    spec = shell(fixture.folder, "server", script, ready=lambda: False, ready_timeout_s=0.5)
    with pytest.raises(UnavailableError, match=r"not ready within 0\.5 s"):
        await fixture.supervisor.start([spec])
    assert not runs(int((fixture.folder / "pid").read_text()))


async def test_a_missing_program_fails_the_start_by_name(fixture: Fixture):
    spec = ProcessSpec(
        name="ghost", command=("/no/such/program",), environment={}, log_path=fixture.folder / "ghost.log"
    )
    with pytest.raises(UnavailableError, match=r"ghost cannot be started.*/no/such/program"):
        await fixture.supervisor.start([spec])


async def test_layers_stop_in_reverse_order_because_the_later_ones_need_the_earlier(fixture: Fixture):
    def script(name: str) -> str:
        return f"trap 'echo {name} >> order; exit 0' TERM; touch {name}.up; while :; do sleep 0.05; done"

    for name in ("server", "service", "door"):
        await fixture.supervisor.start(
            [shell(fixture.folder, name, script(name), ready=(fixture.folder / f"{name}.up").exists)]
        )
    await fixture.supervisor.stop()
    assert (fixture.folder / "order").read_text().split() == ["door", "service", "server"]


async def test_a_process_that_ignores_the_stop_signal_is_killed_after_its_bound_with_its_children(
    fixture: Fixture,
):
    script = "trap '' TERM; sleep 60 & echo $! > child; touch up; while :; do sleep 1; done"
    await fixture.supervisor.start(
        [shell(fixture.folder, "mule", script, ready=(fixture.folder / "up").exists, stop_timeout_s=0.3)]
    )
    pids = (fixture.pid("mule"), int((fixture.folder / "child").read_text()))
    started = time.monotonic()
    await fixture.supervisor.stop()
    assert time.monotonic() - started < 2
    await eventually(lambda: not any(runs(pid) for pid in pids))
    assert "mule did not stop within 0.3 s" in fixture.reports[0]


async def test_stopping_while_a_process_waits_to_be_restarted_starts_it_no_more(fixture: Fixture):
    await fixture.supervisor.start([shell(fixture.folder, "worker", "echo x >> starts; exit 1")])
    await eventually(lambda: len(fixture.reports) > 0)
    await fixture.supervisor.stop()
    starts = (fixture.folder / "starts").read_text()
    await asyncio.sleep(0.6)
    assert (fixture.folder / "starts").read_text() == starts


async def test_a_removed_process_is_cleaned_up_after_and_the_others_run_on(fixture: Fixture):
    ready_file = fixture.folder / "engine.json"
    ready_file.write_text("{}")
    specs = [
        shell(fixture.folder, "engine", "exec sleep 60", after_exit=ready_file.unlink),
        shell(fixture.folder, "other", "exec sleep 60"),
    ]
    await fixture.supervisor.start(specs)
    await fixture.supervisor.remove("engine")
    assert not ready_file.exists()
    assert list(fixture.supervisor.processes) == ["other"]
    assert runs(fixture.pid("other"))


PARENT = """
import asyncio, sys
from pathlib import Path
from console.process import ProcessSpec
from console.supervisor import Supervisor

async def main():
    folder = Path(sys.argv[1])
    spec = ProcessSpec(
        name="worker", command=("/bin/sh", "-c", "trap '' TERM INT; echo $$ > pid; while :; do sleep 0.1; done"),
        environment={"PATH": "/usr/bin:/bin"}, log_path=folder / "log", directory=folder,
        ready=(folder / "pid").exists,
    )
    await Supervisor(print).start([spec])
    print("up", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_children_die_with_a_supervisor_that_was_killed(tmp_path: Path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    with parent.stdout:
        assert parent.stdout.readline() == "up\n"
    pid = int((tmp_path / "pid").read_text())
    assert runs(pid)
    parent.kill()
    parent.wait()
    await eventually(lambda: not runs(pid))
