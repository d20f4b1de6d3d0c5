"""Each class separately, both denominators, the spread, and an honest best."""

from typing import Any

import msgspec

from lab.results.model import Run
from lab.results.tables import Table, overall, per_class, per_length


def _run(example: dict[str, Any]) -> Run:
    return msgspec.convert(example, Run)


def _cell(table: Table, policy: str, column: str) -> Any:
    row = next(row for row in table.rows if row.name == policy)
    return row.cells[next(i for i, label in enumerate(table.columns) if label.startswith(column))]


def test_all_policies_and_the_bound_are_in_the_table_of_all_requests(example: dict[str, Any]) -> None:
    table = overall(_run(example))
    assert [row.name for row in table.rows][:2] == ["bound", "TokenFleet"]
    assert len(table.rows) == len(example["policies"]) + 1
    assert _cell(table, "bound", "goodput").text == "1,640"
    assert _cell(table, "bound", "TTFT P95").text == "2.96"


def test_attainment_has_both_denominators_with_the_spread(example: dict[str, Any]) -> None:
    table = overall(_run(example))
    offered, admitted = (_cell(table, "TokenFleet", f"met, of {of}") for of in ("offered", "admitted"))
    assert (offered.text, offered.range) == ("98.5 %", "97.5–99.3 %")
    assert admitted.text == "99.7 %"
    assert _cell(table, "TokenFleet", "refused").text == "1.2 %"


def test_each_class_has_a_table_of_its_own(example: dict[str, Any]) -> None:
    tables = per_class(_run(example))
    assert [table.heading.split(":")[0] for table in tables] == [
        "Class interactive",
        "Class long_context",
        "Class batch",
    ]
    for table in tables:
        assert {"met, of offered", "met, of admitted"} <= set(table.columns)
        assert len(table.rows) == len(example["policies"])


def test_prompt_lengths_show_what_was_refused(example: dict[str, Any]) -> None:
    table = per_length(_run(example))
    assert table.columns[-1] == "above 64k (300 offered)"
    assert _cell(table, "TokenFleet", "above 64k").detail.startswith("3.6 %; ")


def test_the_bound_is_never_the_best_and_what_reads_the_same_is_marked_alike(example: dict[str, Any]) -> None:
    example["policies"]["llm_d"]["goodput_tokens_per_s"] = 1600.3
    table = overall(_run(example))
    marked = [row.name for row in table.rows if row.cells[0].best]
    assert marked == ["TokenFleet", "llm-d"]


def test_nothing_is_best_when_all_read_the_same(example: dict[str, Any]) -> None:
    table = overall(_run(example))
    column = table.columns.index("TPOT P95, ms")
    assert not any(row.cells[column].best for row in table.rows)


def test_a_policy_without_a_class_has_an_empty_cell_rather_than_a_zero(example: dict[str, Any]) -> None:
    del example["policies"]["llm_d"]["classes"]["batch"]
    table = per_class(_run(example))[-1]
    assert _cell(table, "llm-d", "goodput").text == "–"
