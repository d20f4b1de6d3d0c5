"""One row beside what the rules make of its event."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import any_ended, ended

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import CANONICAL, FIELDS, ROW_SCHEMA
from goodput_accountant.policy.comparison import DERIVED, Covered, compare, covered


def columns(row: LedgerRow) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), **dict.fromkeys(DERIVED, "a moment")}


ROW = columns(account(ended("r1")))


@given(any_ended())
def test_a_row_that_is_what_its_event_makes_it_is_no_difference(event):
    row = columns(account(event))
    assert compare(row, dict(row), ROW_SCHEMA) is None


@pytest.mark.parametrize("column", [*FIELDS, *DERIVED])
def test_a_change_of_any_column_is_named_with_both_values(column: str):
    tampered = ROW | {column: "tampered" if column != "submitted_ns" else 1}
    difference = compare(ROW, tampered, ROW_SCHEMA)
    assert difference is not None
    assert difference.kind == "changed"
    assert set(difference.columns) == {column}
    assert difference.columns[column].should_be == ROW[column]
    assert difference.columns[column].is_ == tampered[column]


@pytest.mark.parametrize("column", sorted(set(FIELDS) - set(CANONICAL[1])))
def test_what_an_older_rows_schema_did_not_have_is_not_compared(column: str):
    assert compare(ROW, ROW | {column: None}, 1) is None


def test_a_row_of_an_unknown_schema_is_a_difference():
    difference = compare(ROW, ROW, 99)
    assert difference is not None
    assert difference.columns["row_schema"].is_ == 99


def test_an_event_without_a_row_is_missing_and_a_row_without_an_event_unknown():
    missing, unknown = compare(ROW, None, None), compare(None, ROW, ROW_SCHEMA)
    assert missing is not None
    assert unknown is not None
    assert (missing.kind, missing.request_id) == ("missing", "r1")
    assert (unknown.kind, unknown.request_id) == ("unknown", "r1")


@given(st.integers(0, 100))
def test_only_what_ended_within_a_span_must_be_among_the_events(ended_ns: int):
    spans = [Covered(from_ns=10, to_ns=20), Covered(from_ns=50)]
    assert covered(ended_ns, spans) == (10 <= ended_ns < 20 or ended_ns >= 50)
    assert not covered(ended_ns, [])
