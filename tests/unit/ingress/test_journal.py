"""Wherever a process dies, each request it had accepted gets exactly one outcome afterwards."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.journal import COMPACT_BYTES, RESTARTED, Journal, outcome_of, unsettled
from ingress.policy.happenings import ClientGone, Instant
from ingress.policy.lifecycle import Lifecycle
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.errors import ConfigurationError


def life(request_id: str, blocks: bytes = b"") -> Lifecycle:
    spec = RequestSpec(
        model="m",
        entry_site="local",
        ingress="i",
        input_tokens=5,
        max_output_tokens=5,
        block_size_tokens=16,
        blocks=blocks,
        client_request_id=f"client-{request_id}",
    )
    return Lifecycle(
        request_id=request_id, tenant="t", site="local", request=spec, at=Instant(0.0, 10**9), time_scale=2.0
    )


def run_to_the_end(journal: Journal, request_id: str) -> None:
    request = life(request_id)
    journal.accepted(request.submitted())
    finish = request.receive(ClientGone(), Instant(1.0, 2 * 10**9))
    journal.ended(finish.ended)  # type: ignore[union-attr]


def test_a_full_disk_does_not_cost_what_is_owed_when_the_journal_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "requests.journal"
    journal = Journal(path)
    for name in ("a", "b", "c"):
        run_to_the_end(journal, name)
    monkeypatch.setattr("ingress.journal.COMPACT_BYTES", 0)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(OSError, match="is the disk full"):
        journal.settled("a")
    assert {line.ended.request_id for line in unsettled(path.read_bytes().splitlines()) if line.ended} >= {
        "b",
        "c",
    }


@given(st.data())
def test_a_crash_at_any_byte_settles_each_accepted_request_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "requests.journal"
    journal = Journal(path)
    # "keeper" stays open, so that the file is never emptied.
    journal.accepted(life("keeper").submitted())
    expected: dict[str, str] = {"keeper": RESTARTED}
    marks: list[tuple[int, dict[str, str]]] = [(path.stat().st_size, dict(expected))]

    def mark() -> None:
        marks.append((path.stat().st_size, dict(expected)))

    for index, stage in enumerate(data.draw(st.lists(st.integers(1, 3), max_size=5))):
        name = f"r{index}"
        request = life(name)
        journal.accepted(request.submitted())
        expected[name] = RESTARTED
        mark()
        if stage >= 2:
            finish = request.receive(ClientGone(), Instant(1.0, 2 * 10**9))
            journal.ended(finish.ended)  # type: ignore[union-attr]
            expected[name] = "client_disconnected"
            mark()
        if stage == 3:
            journal.settled(name)
            del expected[name]
            mark()
    journal.close()
    content = path.read_bytes()
    cut = data.draw(st.integers(marks[0][0], len(content)))
    path.write_bytes(content[:cut])
    reached = [state for size, state in marks if size <= cut][-1]

    revived = Journal(path)
    # A torn line may be complete but for its newline: then it already counts.
    following = [state for size, state in marks if size == cut + 1]
    outcomes = [outcome_of(line, 3 * 10**9, 2.0) for line in revived.left_over]
    found = {ended.request_id: ended for ended in outcomes}
    assert len(found) == len(outcomes)
    assert {name: ended.reason for name, ended in found.items()} in [reached, *following]
    assert {ended.event_id for ended in found.values()} == {f"{name}.end" for name in found}
    for name in list(found):
        revived.settled(name)
    revived.close()
    assert path.read_bytes() == b""


def test_an_unfinished_request_becomes_a_failure_by_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.accepted(life("r").submitted())
    journal.close()
    (line,) = Journal(tmp_path / "j").left_over
    ended = outcome_of(line, 4 * 10**9, 2.0)
    assert (ended.outcome, ended.reason, ended.event_id) == ("failed", RESTARTED, "r.end")
    assert ended.e2e_s == pytest.approx(6.0), "three wall seconds are six engine seconds"
    assert ended.client_request_id == "client-r"
    assert not ended.tokens_exact


def test_the_file_is_empty_whenever_nothing_is_owed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    for name in ("a", "b"):
        run_to_the_end(journal, name)
    journal.settled("a")
    assert journal.backlog == 1
    journal.settled("b")
    assert journal.backlog == 0
    assert (tmp_path / "j").stat().st_size == 0


def test_settling_twice_is_harmless(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    run_to_the_end(journal, "a")
    journal.settled("a")
    journal.settled("a")
    assert journal.backlog == 0


def test_a_grown_file_is_rewritten_with_only_what_is_owed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.accepted(life("keeper").submitted())
    for index in range(4500):
        run_to_the_end(journal, f"r{index}")
        journal.settled(f"r{index}")
    assert (tmp_path / "j").stat().st_size < COMPACT_BYTES + 4096
    journal.close()
    (line,) = Journal(tmp_path / "j").left_over
    assert line.accepted is not None
    assert line.accepted.request_id == "keeper"


def test_block_hashes_are_not_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.accepted(life("r", blocks=b"x" * 8 * 8192).submitted())
    assert (tmp_path / "j").stat().st_size < 1000


def test_two_ingresses_cannot_share_a_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(ConfigurationError, match="TOKENFLEET_INGRESS_NAME"):
        Journal(tmp_path / "j")
    journal.close()
    Journal(tmp_path / "j").close()


def test_unreadable_lines_are_passed_over() -> None:
    assert unsettled([b"{", b"\xff", b'{"settled":"x"}', b"{}"]) == []
