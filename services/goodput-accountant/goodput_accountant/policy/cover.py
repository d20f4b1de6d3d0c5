"""Which roll-ups, and which rows, together are exactly the requests of a span of time.

Times are microseconds since 1970, as fine as the ledger's times of submission are.
"""

from collections.abc import Sequence

import msgspec

US_PER_S = 1_000_000
DAY_S, HOUR_S, FINE_S = 86_400, 3_600, 300
WIDTHS = (DAY_S, HOUR_S, FINE_S)
"""Of roll-ups in seconds, each a multiple of the next. The narrowest are kept of the latest days only."""


class Span(msgspec.Struct, frozen=True, order=True):
    """From a moment (inclusive) to another (exclusive)."""

    start: int
    end: int


class Piece(msgspec.Struct, frozen=True):
    """Roll-ups of one width, one after the other."""

    width_s: int
    span: Span


class Cover(msgspec.Struct, frozen=True):
    """What to read: without a gap, and nothing twice."""

    pieces: Sequence[Piece]
    spans: Sequence[Span]
    """Where rows must be read."""


def cover(wanted: Span, fine_from: int, holes: Sequence[Span] = ()) -> Cover:
    """As few roll-ups as possible, and rows for the rest.

    Args:
        wanted: what to cover.
        fine_from: the moment from which there are roll-ups of the narrowest width.
        holes: where no roll-up may be used.
    """
    pieces: list[Piece] = []
    spans: list[Span] = []
    _cover(wanted, WIDTHS, fine_from, sorted(holes), pieces, spans)
    return Cover(pieces, spans)


def within(moment: int, places: Sequence[Span]) -> bool:
    """Whether a moment is in one of some spans."""
    return any(place.start <= moment < place.end for place in places)


def _cover(
    wanted: Span,
    widths: Sequence[int],
    fine_from: int,
    holes: Sequence[Span],
    pieces: list[Piece],
    spans: list[Span],
) -> None:
    if wanted.start >= wanted.end:
        return
    if not widths or (widths[0] == FINE_S and wanted.start < fine_from):
        spans.append(wanted)
        return
    width = widths[0] * US_PER_S
    at, last = -(-wanted.start // width) * width, wanted.end // width * width
    if at >= last:
        _cover(wanted, widths[1:], fine_from, holes, pieces, spans)
        return
    _cover(Span(wanted.start, at), widths[1:], fine_from, holes, pieces, spans)
    for hole in holes:
        begin, end = max(at, hole.start // width * width), min(last, -(-hole.end // width) * width)
        if begin >= end:
            continue
        if at < begin:
            pieces.append(Piece(widths[0], Span(at, begin)))
        _cover(Span(begin, end), widths[1:], fine_from, holes, pieces, spans)
        at = end
    if at < last:
        pieces.append(Piece(widths[0], Span(at, last)))
    _cover(Span(last, wanted.end), widths[1:], fine_from, holes, pieces, spans)
