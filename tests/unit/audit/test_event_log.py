"""Files of events: what was written is what is read, and a damaged file says where."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.event_log import EventLogError, LoggedEvent, Span, read_log, read_log_and_spans, write_log

SPAN = Span(from_ns=10, to_ns=1_000)


def event(number: int, data: bytes = b'{"event_id":"a"}') -> LoggedEvent:
    return LoggedEvent(subject="tf.v1.local.request.p.completed", time_ns=number, sequence=number, data=data)


def lines_of(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl.gz"
    write_log(path, (event(number) for number in range(1, 101)), SPAN)
    return path


def damaged(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(gzip.compress(b"".join(lines)))
    return path


@given(st.lists(st.binary() | st.builds(lambda value: json.dumps(value).encode(), st.text())))
def test_every_byte_of_every_message_comes_back(tmp_path_factory: pytest.TempPathFactory, data: list[bytes]):
    path = tmp_path_factory.mktemp("log") / "events.jsonl.gz"
    events = [event(number, each) for number, each in enumerate(data)]
    assert write_log(path, events, SPAN) == len(events)
    assert list(read_log(path)) == events


def test_any_tool_that_reads_json_lines_reads_the_messages(log: Path):
    line = json.loads(lines_of(log)[1])
    assert line["event"] == {"event_id": "a"}
    assert line["subject"] == "tf.v1.local.request.p.completed"


def test_the_same_events_make_the_same_file(log: Path, tmp_path: Path):
    again = tmp_path / "again.jsonl.gz"
    write_log(again, (event(number) for number in range(1, 101)), SPAN)
    assert again.read_bytes() == log.read_bytes()


def test_files_joined_are_one_file_that_covers_both(log: Path, tmp_path: Path):
    later = tmp_path / "later.jsonl.gz"
    write_log(later, [event(7)], Span(from_ns=1_000, to_ns=2_000))
    joined = tmp_path / "joined.jsonl.gz"
    joined.write_bytes(log.read_bytes() + later.read_bytes())
    assert len(list(read_log(joined))) == 101
    spans = [item for item in read_log_and_spans(joined) if isinstance(item, Span)]
    assert spans == [SPAN, Span(from_ns=1_000, to_ns=2_000)]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, share: float):
    path = tmp_path / "events.jsonl.gz"
    write_log(path, (event(n, str(n * 7919**3).encode()) for n in range(1, 5_000)), SPAN)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(EventLogError, match=r"cut off (after|within) line [\d,]+"):
        list(read_log(path))


def test_a_file_cut_off_between_two_lines_is_refused_although_what_is_left_is_whole(log: Path):
    with pytest.raises(EventLogError, match="cut off after line 51: its last line"):
        list(read_log(damaged(log, lines_of(log)[:51])))


def test_a_missing_line_is_found(log: Path):
    lines = lines_of(log)
    with pytest.raises(EventLogError, match=r"line 101: there should be 100 messages .* there are 99"):
        list(read_log(damaged(log, lines[:50] + lines[51:])))


def test_a_changed_line_is_found(log: Path):
    lines = lines_of(log)
    lines[50] = lines[50].replace(b'"a"', b'"b"')
    with pytest.raises(EventLogError, match=r"line 102: .* SHA-256"):
        list(read_log(damaged(log, lines)))


def test_a_line_that_is_not_json_is_named(log: Path):
    lines = lines_of(log)
    lines[41] = b"garbage\n"
    with pytest.raises(EventLogError, match="line 42: JSON is malformed"):
        list(read_log(damaged(log, lines)))


def test_flipped_bits_are_found(log: Path):
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)
    with pytest.raises(EventLogError, match=r"line \d+"):
        list(read_log(log))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"plain text\n", "damaged after line 0: Not a gzipped file"),
        (gzip.compress(b"plain text\n"), "line 1: not the first line of a file of `tokenfleet audit export`"),
        (
            gzip.compress(b'{"tokenfleet_events":2,"from_ns":1,"to_ns":2}\n'),
            "line 1: format 2 is not known to this version",
        ),
    ],
    # Compressed bytes hold the time: in a name they would differ between the workers of one run.
    ids=["empty", "not compressed", "another file", "a later format"],
)
def test_another_file_is_refused_with_its_reason(tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(EventLogError, match=says):
        list(read_log(path))


def test_a_missing_file_is_one_message(tmp_path: Path):
    with pytest.raises(EventLogError, match=r"nowhere\.gz cannot be read: No such file"):
        list(read_log(tmp_path / "nowhere.gz"))


def test_a_failure_while_writing_leaves_nothing_behind_and_the_old_file_as_it_was(log: Path):
    before = log.read_bytes()

    def events() -> Iterator[LoggedEvent]:
        yield event(1)
        raise RuntimeError("NATS went away")

    with pytest.raises(RuntimeError):
        write_log(log, events(), SPAN)
    assert [path.name for path in log.parent.iterdir()] == [log.name]
    assert log.read_bytes() == before


def test_a_folder_that_does_not_exist_is_one_message(tmp_path: Path):
    with pytest.raises(EventLogError, match="cannot be written: No such file"):
        write_log(tmp_path / "none" / "events.jsonl.gz", [], SPAN)
