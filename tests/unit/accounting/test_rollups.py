"""Roll-ups say of any rows what totals of the rows say, stored and joined as well."""

from collections import defaultdict
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import any_ended

from goodput_accountant.policy.accounting import LedgerRow, WasteCause, account
from goodput_accountant.policy.cover import WIDTHS
from goodput_accountant.policy.report import KEYS
from goodput_accountant.policy.rollups import (
    CAUSES,
    FIGURES,
    GROUP_KEYS,
    OUTCOMES,
    Bucket,
    Group,
    Stored,
    bucket_of,
    compact,
    joined,
    restored,
    rolled_up,
)
from goodput_accountant.policy.totals import COUNTS, Totals
from tokenfleet.contracts.requests import Outcome
from tokenfleet.errors import ContractError

any_rows = st.lists(any_ended().map(account), max_size=12)


@given(any_rows)
def test_roll_ups_of_every_width_have_every_row_once(rows: list[LedgerRow]) -> None:
    buckets = rolled_up(rows, WIDTHS)
    for width_s in WIDTHS:
        expected: dict[Bucket, list[LedgerRow]] = defaultdict(list)
        for row in rows:
            expected[bucket_of(row, width_s)].append(row)
        found = {bucket: kept for bucket, kept in buckets.items() if bucket.width_s == width_s}
        totals = {bucket: restored(compact(kept), bucket.group) for bucket, kept in found.items()}
        assert totals == {bucket: Totals.of(group) for bucket, group in expected.items()}


@given(any_rows)
def test_stored_and_joined_they_are_the_totals_of_their_rows(rows: list[LedgerRow]) -> None:
    parts: dict[Group, list[Stored]] = defaultdict(list)
    members: dict[Group, list[LedgerRow]] = defaultdict(list)
    for bucket, kept in rolled_up(rows, WIDTHS[-1:]).items():
        parts[bucket.group].append(kept)
    for row in rows:
        members[bucket_of(row, 300).group].append(row)
    for group, kept in parts.items():
        whole = joined(kept)
        assert restored(whole, group) == restored(compact(whole), group) == Totals.of(members[group])


@given(any_ended().map(account))
def test_a_roll_up_is_grouped_as_its_rows_are(row: LedgerRow) -> None:
    group = bucket_of(row, 3600).group
    assert {name: key(group) for name, key in GROUP_KEYS.items()} == {
        name: KEYS[name](row) for name in GROUP_KEYS
    }


def test_everything_totals_know_has_its_place() -> None:
    assert set(COUNTS) <= set(FIGURES)
    assert set(get_args(Outcome)) == set(OUTCOMES)
    assert {*get_args(WasteCause), "retried"} == set(CAUSES)
    assert len(set(FIGURES)) == len(FIGURES)


def test_bytes_of_something_else_are_refused() -> None:
    group = Group("local", "llama-70b@1", "acme", "interactive", "llama-70b", 1.0)
    for figures in (b"", b"12345678"):
        with pytest.raises(ContractError, match="no figures of a roll-up"):
            restored(Stored(0, 1, figures, b"", b"", b""), group)
