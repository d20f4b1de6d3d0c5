"""An exported file is whole or not there, however the pages come."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest
from unit.accounting.rows import ended

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import FIELDS
from goodput_accountant.reporting import export, row_files
from goodput_accountant.reporting.export import export_rows
from goodput_accountant.reporting.row_files import SUFFIXES, ExportError, row_file, writes
from tokenfleet.contracts.ledger import LedgerRows, RowCursor, RowsRequest
from tokenfleet.errors import RemoteError, TokenFleetError, UnavailableError

ROWS = [account(ended(f"r{number}", ttft_s=9.0 if number % 2 else None)) for number in range(7)]


class Accountant:
    """Answers one row a page, and an empty page in between; fails where a test says so."""

    def __init__(
        self, rows: Sequence[LedgerRow], failures: dict[int, Sequence[TokenFleetError]] | None = None
    ):
        self._rows = rows
        self._failures = {place: list(errors) for place, errors in (failures or {}).items()}

    async def __call__(self, request: RowsRequest) -> LedgerRows:
        place = request.after.sequence if request.after else 0
        if self._failures.get(place):
            raise self._failures[place].pop(0)
        number, empty = divmod(place, 2)
        rows = () if empty or number >= len(self._rows) else (_sent(self._rows[number]),)
        more = RowCursor(day=1, sequence=place + 1) if place + 1 < 2 * len(self._rows) else None
        return LedgerRows(columns=FIELDS, rows=rows, next=more, done=number, total=len(self._rows))


def _sent(row: LedgerRow) -> tuple[object, ...]:
    return tuple(json.loads(msgspec.json.encode(msgspec.structs.astuple(row))))


async def exported(accountant: Accountant, out: Path) -> int:
    return await export_rows(accountant, RowsRequest(), out, lambda stage, done: None)


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_the_same_rows_make_the_same_file_under_its_name_only(tmp_path: Path, suffix: str) -> None:
    one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix}"
    assert await exported(Accountant(ROWS), one) == await exported(Accountant(ROWS), other) == len(ROWS)
    assert one.read_bytes() == other.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {one.name, other.name}


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_an_error_in_the_middle_leaves_the_old_file_as_it_was(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"rows{suffix}"
    out.write_text("old")
    broken = Accountant(ROWS, {4: [RemoteError("BadQuestionError", "no longer kept")]})
    with pytest.raises(RemoteError, match="no longer kept"):
        await exported(broken, out)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


async def test_an_accountant_that_restarts_in_the_middle_does_not_end_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "RETRY_S", 0.0)
    out = tmp_path / "rows.jsonl"
    away: list[TokenFleetError] = [
        UnavailableError("nobody answers"),
        RemoteError("UnavailableError", "away"),
    ]
    assert await exported(Accountant(ROWS, {3: away}), out) == len(ROWS)
    assert [json.loads(line)["request_id"] for line in out.read_text().splitlines()] == [
        row.request_id for row in ROWS
    ]
    for place, errors in ((3, [UnavailableError("gone")] * export.TRIES), (0, [UnavailableError("gone")])):
        with pytest.raises(UnavailableError, match="gone"):
            await exported(Accountant(ROWS, {place: errors}), out)


async def test_no_rows_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no requests that match"):
        await exported(Accountant([]), tmp_path / "rows.csv")
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ExportError, match=r"rows\.csv cannot be written: No space left on device"):
        await exported(Accountant(ROWS), tmp_path / "rows.csv")
    assert list(tmp_path.iterdir()) == []


def test_parquet_columns_have_the_types_of_rows_in_groups_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "ROW_GROUP_ROWS", 3)
    out = tmp_path / "rows.parquet"
    with row_file(out, FIELDS) as file:
        file.add([_sent(row) for row in ROWS])
    parquet = pyarrow.parquet.ParquetFile(out)
    assert [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)] == [
        3,
        3,
        1,
    ]
    types = {field.name: (str(field.type), field.nullable) for field in parquet.schema_arrow}
    assert types["submitted_ns"] == ("int64", False)
    assert types["ttft_s"] == ("double", True)
    assert types["met"] == ("bool", True)
    assert types["outcome"] == ("string", False)
    assert types["waste_cause"] == ("string", True)
    assert types["missed"][0].startswith("list<")


def test_columns_of_a_newer_accountant_are_refused_for_parquet(tmp_path: Path) -> None:
    with (
        pytest.raises(ExportError, match="does not know: colour"),
        row_file(tmp_path / "rows.parquet", [*FIELDS, "colour"]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.csv", True), ("a.b.jsonl.gz", True), ("a.gz", False), (".csv", False), ("csv", False)],
)
def test_the_name_says_the_form(name: str, said: bool) -> None:
    assert writes(Path(name)) == said
