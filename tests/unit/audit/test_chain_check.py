"""Any tampering with a committed chain is found, and where."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from unit.accounting.rows import any_ended, ended

from goodput_accountant.policy.accounting import account
from goodput_accountant.policy.chain import START, canonical_values, link
from goodput_accountant.policy.chain_check import Break, ChainCheck, DayHead, Link

DAY = "2023-11-14"

chains = st.lists(any_ended().map(account), min_size=3, max_size=8, unique_by=lambda row: row.event_id)


def committed(rows, first: int = 0, head: bytes = START) -> list[Link]:
    contents = [canonical_values(msgspec.structs.astuple(row)) for row in rows]
    hashes = link(head, contents)
    return [
        Link(
            sequence=first + number,
            chain_hash=chain_hash,
            canonical=content,
            event_id=row.event_id,
            request_id=row.request_id,
        )
        for number, (row, content, chain_hash) in enumerate(zip(rows, contents, hashes, strict=True), start=1)
    ]


def head_of(links: list[Link]) -> DayHead:
    return DayHead(rows=links[-1].sequence, head=links[-1].chain_hash)


def breaks_of(links: list[Link], head: DayHead | None) -> list[Break]:
    check = ChainCheck(DAY, head)
    found = [
        each for each_link in sorted(links, key=lambda one: one.sequence) for each in check.take(each_link)
    ]
    return found + check.finish()


def kinds(breaks: list[Break]) -> list[tuple[str, int]]:
    return [(each.kind, each.sequence) for each in breaks]


def renumbered(links: list[Link]) -> list[Link]:
    return [msgspec.structs.replace(each, sequence=number) for number, each in enumerate(links, start=1)]


def some_row(request_id: str = "forged") -> Link:
    return committed([account(ended(request_id))])[0]


@given(chains)
def test_what_was_committed_is_whole(rows):
    links = committed(rows)
    assert breaks_of(links, head_of(links)) == []


@given(chains, st.data())
def test_a_day_whose_first_rows_were_dropped_goes_on_from_their_last_hash(rows, data: st.DataObject):
    links = committed(rows)
    kept = data.draw(st.integers(1, len(links)))
    head = DayHead(
        rows=len(links), head=links[-1].chain_hash, dropped_rows=kept, dropped_head=links[kept - 1].chain_hash
    )
    assert breaks_of(links[kept:], head) == []


@given(chains, st.data())
def test_a_change_of_any_column_is_found_at_its_row(rows, data: st.DataObject):
    links = committed(rows)
    at = data.draw(st.integers(0, len(rows) - 1))
    values = msgspec.json.decode(links[at].canonical)
    column = data.draw(st.integers(0, len(values) - 1))
    values[column] = data.draw(
        st.sampled_from(["x", 12345, None, 0.25]).filter(lambda v: v != values[column])
    )
    links[at] = msgspec.structs.replace(links[at], canonical=msgspec.json.encode(values))
    found = breaks_of(links, head_of(links))
    assert kinds(found) == [("changed", at + 1)]
    assert found[0].request_id == rows[at].request_id


@given(chains, st.data())
def test_a_row_changed_together_with_its_hash_is_found_at_the_next_one_which_names_it(
    rows, data: st.DataObject
):
    links = committed(rows)
    head = head_of(links)
    at = data.draw(st.integers(0, len(rows) - 1))
    content = canonical_values(
        msgspec.structs.astuple(msgspec.structs.replace(rows[at], output_tokens=rows[at].output_tokens + 1))
    )
    before = links[at - 1].chain_hash if at else START
    links[at] = msgspec.structs.replace(links[at], canonical=content, chain_hash=link(before, [content])[0])
    found = breaks_of(links, head)
    if at == len(rows) - 1:
        assert kinds(found) == [("recomputed", at + 1)]
    else:
        assert kinds(found) == [("changed", at + 2)]
        assert f"or row {at + 1} was together with its hash" in found[0].meaning


@given(chains, st.data())
def test_a_chain_computed_anew_from_a_changed_row_on_does_not_end_as_it_did(rows, data: st.DataObject):
    head = head_of(committed(rows))
    at = data.draw(st.integers(0, len(rows) - 1))
    rows[at] = msgspec.structs.replace(rows[at], tenant="another")
    assert kinds(breaks_of(committed(rows), head)) == [("recomputed", len(rows))]


@given(chains, st.data())
def test_a_removed_row_is_missed_where_it_was(rows, data: st.DataObject):
    links = committed(rows)
    at = data.draw(st.integers(0, len(rows) - 2))
    found = breaks_of(links[:at] + links[at + 1 :], head_of(links))
    assert kinds(found) == [("removed", at + 1)]
    assert links[at + 1].request_id in found[0].meaning


@given(chains, st.data())
def test_a_removed_row_is_found_although_the_others_were_numbered_anew(rows, data: st.DataObject):
    links = committed(rows)
    at = data.draw(st.integers(0, len(rows) - 2))
    found = breaks_of(renumbered(links[:at] + links[at + 1 :]), head_of(links))
    assert kinds(found) == [("changed", at + 1), ("removed", len(rows) - 1)]


@given(chains, st.data())
def test_rows_cut_off_at_the_end_are_counted(rows, data: st.DataObject):
    links = committed(rows)
    left = data.draw(st.integers(0, len(rows) - 1))
    found = breaks_of(links[:left], head_of(links))
    assert kinds(found) == [("cut_off", left + 1)]


@given(chains, st.data())
def test_a_row_put_in_is_named(rows, data: st.DataObject):
    links = committed(rows)
    at = data.draw(st.integers(0, len(rows) - 1))
    if data.draw(st.booleans(), label="with the hash it should have"):
        content = canonical_values(msgspec.structs.astuple(account(ended("forged"))))
        chain_hash = link(links[at - 1].chain_hash if at else START, [content])[0]
    else:
        chain_hash = data.draw(st.binary(min_size=32, max_size=32).filter(lambda one: one != START))
    forged = msgspec.structs.replace(some_row(), chain_hash=chain_hash)
    found = breaks_of(renumbered([*links[:at], forged, *links[at:]]), head_of(links))
    assert ("inserted", at + 1) in kinds(found)
    assert ("inserted", len(rows) + 1) in kinds(found)
    assert found[0].request_id == "forged"


@given(chains, st.data())
def test_a_row_that_takes_the_position_of_another_is_named(rows, data: st.DataObject):
    links = committed(rows)
    at = data.draw(st.integers(1, len(rows)))
    forged = msgspec.structs.replace(some_row(), sequence=at)
    found = breaks_of([*links, forged], head_of(links))
    assert [(each.kind, each.sequence, each.request_id) for each in found] == [("inserted", at, "forged")]


@given(chains, st.data())
def test_two_rows_that_changed_places_are_found_there(rows, data: st.DataObject):
    links = committed(rows)
    one = data.draw(st.integers(0, len(rows) - 2))
    other = data.draw(st.integers(one + 1, len(rows) - 1))
    links[one], links[other] = (
        msgspec.structs.replace(links[other], sequence=one + 1),
        msgspec.structs.replace(links[one], sequence=other + 1),
    )
    found = breaks_of(links, head_of(committed(rows)))
    at = {each.sequence for each in found}
    assert at & {one + 1, one + 2}
    assert at & {other, other + 1, other + 2}
    assert at <= {one + 1, one + 2, other, other + 1, other + 2}


@given(chains)
def test_a_day_that_nobody_committed_is_found(rows):
    links = committed(rows)
    assert kinds(breaks_of(links, None)) == [("inserted", len(rows))]


def test_a_row_of_a_schema_there_never_was_and_a_column_beside_the_hash_are_found():
    rows = [account(ended(f"r{number}")) for number in range(4)]
    links = committed(rows)
    head = head_of(links)
    links[1] = msgspec.structs.replace(links[1], canonical=None)
    links[3] = msgspec.structs.replace(
        links[3], contradiction="submitted_at is an hour later than submitted_ns"
    )
    found = breaks_of(links, head)
    assert kinds(found) == [("changed", 2), ("changed", 4)]
    assert found[1].meaning.startswith("submitted_at is an hour later")


def test_a_dropped_row_that_is_there_again_is_found():
    links = committed([account(ended(f"r{number}")) for number in range(4)])
    head = DayHead(rows=4, head=links[-1].chain_hash, dropped_rows=2, dropped_head=links[1].chain_hash)
    assert kinds(breaks_of(links[1:], head)) == [("inserted", 2)]
