"""Refusals by reason, tenants, batch lines and steering, where a run has figures of them."""

from typing import Any

import msgspec
import pytest

from lab.results.model import Run
from lab.results.part_tables import part_tables
from lab.results.tables import Table

TTFT = {"p50": 0.5, "p95": 2.0, "p99": 3.0}


def _tables(example: dict[str, Any]) -> dict[str, Table]:
    return {table.heading: table for table in part_tables(msgspec.convert(example, Run))}


def _only(example: dict[str, Any]) -> Table:
    (table,) = _tables(example).values()
    return table


def _cells(table: Table, policy: str) -> dict[str, Any]:
    row = next(row for row in table.rows if row.name == policy)
    return dict(zip(table.columns, row.cells, strict=True))


def _part(met: float) -> dict[str, Any]:
    return {
        "offered": 50,
        "rejected": 5,
        "attainment_offered": met,
        "attainment_admitted": 0.99,
        "ttft_s": TTFT,
    }


def test_a_run_of_before_there_were_such_figures_has_none_of_the_tables(example: dict[str, Any]) -> None:
    assert _tables(example) == {}


def test_refusals_are_listed_by_reason_the_most_frequent_first(example: dict[str, Any]) -> None:
    example["policies"]["tokenfleet"]["rejected_by_reason"] = {"queue_ttl": 12, "predicted": 120}
    table = _only(example)
    assert table.columns == ("predicted", "queue_ttl")
    cell = _cells(table, "TokenFleet")["predicted"]
    assert (cell.text, cell.detail) == ("120", "(1.0 %)")
    assert _cells(table, "llm-d")["predicted"].text == "–"


def test_tenants_are_shown_with_both_denominators_and_the_nine_beside_the_one(
    example: dict[str, Any],
) -> None:
    for result in example["policies"].values():
        result["tenants"] = {"tenant-0": _part(0.9), "tenant-1": _part(0.4)}
        result["others"] = _part(0.9)
    table = _only(example)
    assert table.columns[0] == "all but the one that floods"
    cell = _cells(table, "TokenFleet")["tenant-1 (50 offered)"]
    assert (cell.text, cell.detail) == ("40.0 %", "99.0 %; 10.0 %; 0.50 / 2.00")


def test_batch_lines_show_deadlines_and_work_and_who_did_best(example: dict[str, Any]) -> None:
    for rank, name in enumerate(("tokenfleet", "llm_d")):
        example["policies"][name]["batch"] = {
            "lines": 300,
            "deadlines": 300,
            "deadlines_met": 1 - rank / 2,
            "window_s": 100,
            "output_tokens_per_s": 90,
            "work_per_s": 3.25,
            "others_work_per_s": 2,
        }
    table = _only(example)
    assert "300 lines" in table.heading
    cells = _cells(table, "TokenFleet")
    assert (cells["done by the deadline"].text, cells["done by the deadline"].best) == ("100.0 %", True)
    assert cells["work, engine s/s"].text == "3.25"
    assert _cells(table, "round robin")["done by the deadline"].text == "–"


@pytest.mark.parametrize(("changes", "shown"), [(0, False), (4, True)])
def test_steering_is_shown_where_somebody_steers(example: dict[str, Any], changes: int, shown: bool) -> None:
    steadiness = {"changes": changes, "turned_back": 1, "settled_s": 42.5}
    example["policies"]["tokenfleet"]["steadiness"] = steadiness
    assert bool(_tables(example)) is shown


def test_the_longest_wait_of_a_long_context_has_a_table_of_its_own(example: dict[str, Any]) -> None:
    example["policies"]["tokenfleet"]["starved_s"] = 31.25
    assert _cells(_only(example), "TokenFleet")["longest wait, s"].text == "31.2"
