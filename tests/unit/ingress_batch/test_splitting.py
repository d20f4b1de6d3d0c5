"""An upload becomes lines, whatever chunks it comes in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.batch.splitting import PIECE_ROWS, LineSplitter, LineTooLongError, Row


def split(data: bytes, chunk: int, max_line_bytes: int = 1_000, max_rows: int = 1_000) -> list[Row]:
    splitter = LineSplitter(max_line_bytes, max_rows)
    rows: list[Row] = []
    for start in range(0, len(data), chunk):
        splitter.feed(data[start : start + chunk])
        if splitter.full:
            rows += splitter.piece()
    splitter.finish()
    rows += splitter.piece()
    assert splitter.bytes == len(data)
    return rows


@given(data=st.binary(max_size=300) | st.text("ab\n", max_size=300).map(str.encode), chunk=st.integers(1, 50))
def test_the_lines_are_the_file_and_are_numbered_from_one(data: bytes, chunk: int):
    rows = split(data, chunk)
    assert b"".join(line for _, line in rows) == data
    assert [number for number, _ in rows] == list(range(1, len(rows) + 1))
    assert all(line.endswith(b"\n") for _, line in rows[:-1])
    assert all(b"\n" not in line[:-1] for _, line in rows)


@given(data=st.text("a\n", max_size=200).map(str.encode), chunk=st.integers(1, 50))
def test_a_file_of_too_many_lines_keeps_its_bytes_and_its_count_but_not_a_row_for_each(
    data: bytes, chunk: int
):
    splitter = LineSplitter(1_000, max_rows=5)
    for start in range(0, len(data), chunk):
        splitter.feed(data[start : start + chunk])
    splitter.finish()
    rows = splitter.piece()
    assert b"".join(line for _, line in rows) == data
    assert splitter.lines == len(data.splitlines())
    assert [number for number, _ in rows] == list(range(1, len(rows) + 1))


def test_a_million_line_breaks_do_not_become_a_million_rows():
    splitter = LineSplitter(1_000, max_rows=100)
    for _ in range(100):
        splitter.feed(b"\n" * 10_000)
    assert splitter.lines == 1_000_000
    assert len(splitter.piece()) <= 200


@pytest.mark.parametrize("chunk", [7, 64, 5_000])
def test_a_line_that_is_too_long_is_named_before_it_is_held(chunk: int):
    data = b"short\n" + b"x" * 5_000 + b"\n"
    with pytest.raises(LineTooLongError) as error:
        split(data, chunk, max_line_bytes=100)
    assert error.value.line == 2


def test_pieces_are_due_before_they_grow_large():
    splitter = LineSplitter(1_000, 1_000_000)
    splitter.feed(b"a\n" * PIECE_ROWS)
    assert splitter.full
    assert len(splitter.piece()) == PIECE_ROWS
    assert not splitter.full
