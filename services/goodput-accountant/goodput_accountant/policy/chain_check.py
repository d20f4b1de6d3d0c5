"""Whether a day's rows are the chain that was committed, and if not, where it breaks and what that means.

Each row is checked against the hash that its predecessor has in the ledger, so that one change is one break and not as
many as there are rows after it. What no single row shows (rows cut off at the end, a chain computed anew) the day's
record in `ledger_days` does.
"""

import hashlib
from typing import Literal

import msgspec

from goodput_accountant.policy.chain import START

BreakKind = Literal["changed", "removed", "inserted", "cut_off", "recomputed"]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One row as a link of the chain."""

    sequence: int
    chain_hash: bytes
    canonical: bytes | None
    """None: of a row schema that this version does not know."""
    event_id: str
    request_id: str
    contradiction: str = ""
    """What a column that the hash does not cover says against those that it does."""


class DayHead(msgspec.Struct, frozen=True, kw_only=True):
    """What `ledger_days` has of a day: all its rows, those dropped since included."""

    rows: int
    head: bytes
    dropped_rows: int = 0
    dropped_head: bytes = START


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a chain is not what was committed."""

    day: str
    sequence: int
    """Where: the position of the row, or of the first one missing."""
    kind: BreakKind
    meaning: str
    event_id: str | None = None
    request_id: str | None = None


class ChainCheck:
    """Checks the rows of one day, in order of their sequence."""

    def __init__(self, day: str, head: DayHead | None) -> None:
        """Begin a day.

        Args:
            day: how breaks name it.
            head: its record; None if there is none, which is a break once there is a row.
        """
        self._day = day
        self._head = head
        self._first = head.dropped_rows if head else 0
        self._last = self._first
        self._hash = head.dropped_head if head else START
        """Of the row before the next one."""
        self._hash_before: bytes | None = None
        """Of the row before that one."""
        self._last_link: Link | None = None
        self._doubted: Break | None = None
        """The last row does not follow from the one before: the next one shows whether it was put in or changed."""
        self.rows = 0

    def take(self, link: Link) -> list[Break]:
        """The breaks that the next row brings to light."""
        self.rows += 1
        breaks: list[Break] = []
        if link.contradiction:
            breaks.append(self._break(link, "changed", link.contradiction))
        if link.sequence <= self._last:
            return [*breaks, *self._taken(link)]
        if link.sequence > self._last + 1:
            breaks += [*self._doubts(), self._gap(link)]
        elif link.canonical is None:
            breaks += [
                *self._doubts(),
                self._break(link, "changed", "its row_schema is not one there ever was"),
            ]
        elif _follows(link, self._hash):
            breaks += self._doubts()
        else:
            breaks += self._not_following(link)
        self._hash_before, self._hash = self._hash, link.chain_hash
        self._last, self._last_link = link.sequence, link
        return breaks

    def finish(self) -> list[Break]:
        """The breaks at the end of the day."""
        breaks = self._doubts()
        head = self._head
        if head is None:
            if self.rows:
                breaks.append(
                    self._at(
                        self._last,
                        "inserted",
                        f"ledger_days has no record of the day, and there are rows: {self.rows:,}",
                    )
                )
        elif self._last < head.rows and self._hash == head.head:
            gone = head.rows - self._last
            breaks.append(
                self._at(
                    self._last,
                    "removed",
                    f"the day has {self._last:,} rows, {gone:,} fewer than were committed, and ends with the right one: rows "
                    "were removed further up (where it breaks) and the others numbered anew",
                )
            )
        elif self._last < head.rows:
            breaks.append(
                self._at(
                    self._last + 1,
                    "cut_off",
                    f"the day has {self._last:,} rows and {head.rows:,} were committed: cut off at the end",
                )
            )
        elif self._last > head.rows:
            breaks.append(
                self._at(
                    head.rows + 1,
                    "inserted",
                    f"{head.rows:,} rows were committed, and the last one is number {self._last:,}: rows were added",
                )
            )
        elif self._hash != head.head:
            breaks.append(
                self._at(
                    self._last,
                    "recomputed",
                    "the last hash is not the one that was committed: the last row's, or those from an earlier row on, "
                    "were computed anew",
                )
            )
        return breaks

    def _not_following(self, link: Link) -> list[Break]:
        before = self._last_link
        if before is not None and self._hash_before is not None and _follows(link, self._hash_before):
            self._doubted = None
            meaning = (
                f"it does not belong here: row {link.sequence:,} follows from row {before.sequence - 1:,}"
            )
            return [self._break(before, "inserted", meaning)]
        breaks = self._doubts()
        if link.sequence == self._first + 1:
            meaning = "it was changed, or is not the first row of the day"
        else:
            meaning = f"it was changed, or row {link.sequence - 1:,} was together with its hash, or one between the two was removed"
        self._doubted = self._break(link, "changed", meaning)
        return breaks

    def _taken(self, link: Link) -> list[Break]:
        other = self._last_link
        if other is None or link.sequence <= self._first:
            dropped = f"rows up to {self._first:,} were dropped, and this one is there"
            return [*self._doubts(), self._break(link, "inserted", dropped)]
        meaning = f"position {link.sequence:,} is taken twice, also by request "
        if self._doubted and self._hash_before is not None and _follows(link, self._hash_before):
            self._doubted = None
            self._hash, self._last_link = link.chain_hash, link
            return [
                self._break(
                    other, "inserted", f"{meaning}{link.request_id}, which follows from the row before"
                )
            ]
        return [*self._doubts(), self._break(link, "inserted", f"{meaning}{other.request_id}")]

    def _gap(self, link: Link) -> Break:
        first, last = self._last + 1, link.sequence - 1
        which = f"row {first:,} is" if first == last else f"rows {first:,} to {last:,} are"
        return self._at(first, "removed", f"{which} missing before request {link.request_id}")

    def _doubts(self) -> list[Break]:
        doubted, self._doubted = self._doubted, None
        return [doubted] if doubted else []

    def _break(self, link: Link, kind: BreakKind, meaning: str) -> Break:
        return Break(
            day=self._day,
            sequence=link.sequence,
            kind=kind,
            meaning=meaning,
            event_id=link.event_id,
            request_id=link.request_id,
        )

    def _at(self, sequence: int, kind: BreakKind, meaning: str) -> Break:
        return Break(day=self._day, sequence=sequence, kind=kind, meaning=meaning)


def _follows(link: Link, previous: bytes) -> bool:
    return (
        link.canonical is not None and hashlib.sha256(previous + link.canonical).digest() == link.chain_hash
    )
