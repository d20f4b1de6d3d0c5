"""Whatever span is asked for: roll-ups and rows cover every moment of it once, and roll-ups as much as they can."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from goodput_accountant.policy.cover import DAY_S, FINE_S, HOUR_S, US_PER_S, Piece, Span, cover, within

DAY, HOUR, FINE = (width * US_PER_S for width in (DAY_S, HOUR_S, FINE_S))

moments = st.integers(0, 4 * DAY) | st.integers(0, 4 * 24).map(lambda hour: hour * HOUR)
spans = st.tuples(moments, moments).map(lambda pair: Span(min(pair), max(pair)))
holes = st.lists(
    st.integers(0, 4 * 24 - 1).map(lambda hour: Span(hour * HOUR, (hour + 1) * HOUR)), max_size=4
)


@given(spans, st.integers(0, 4).map(lambda day: day * DAY), holes)
def test_every_moment_is_covered_once(wanted: Span, fine_from: int, closed: list[Span]) -> None:
    plan = cover(wanted, fine_from, closed)
    places = sorted([piece.span for piece in plan.pieces] + list(plan.spans))
    if wanted.start == wanted.end:
        assert not places
        return
    assert places[0].start == wanted.start and places[-1].end == wanted.end
    assert all(one.end == other.start for one, other in itertools.pairwise(places))


@given(spans, st.integers(0, 4).map(lambda day: day * DAY), holes)
def test_roll_ups_are_whole_and_not_where_there_are_none(
    wanted: Span, fine_from: int, closed: list[Span]
) -> None:
    plan = cover(wanted, fine_from, closed)
    for piece in plan.pieces:
        width = piece.width_s * US_PER_S
        assert piece.span.start % width == piece.span.end % width == 0
        assert piece.width_s > FINE_S or piece.span.start >= fine_from
        assert not any(hole.start < piece.span.end and piece.span.start < hole.end for hole in closed)
    if not closed:
        assert all(span.end - span.start < 2 * HOUR for span in plan.spans)


def test_a_month_is_its_days() -> None:
    assert cover(Span(0, 30 * DAY), 0).pieces == [Piece(DAY_S, Span(0, 30 * DAY))]


def test_the_last_hour_needs_rows_for_minutes_only() -> None:
    plan = cover(Span(DAY - HOUR - 1, DAY - 1), 0)
    assert [piece.width_s for piece in plan.pieces] == [FINE_S]
    assert sum(span.end - span.start for span in plan.spans) == FINE
    old = cover(Span(DAY - HOUR - 1, DAY - 1), DAY)
    assert not old.pieces and old.spans == [Span(DAY - HOUR - 1, DAY - 1)]


def test_a_day_with_a_hole_is_its_other_hours() -> None:
    hole = Span(7 * HOUR, 8 * HOUR)
    plan = cover(Span(0, 3 * DAY), 10 * DAY, [hole])
    assert plan.pieces == [
        Piece(HOUR_S, Span(0, 7 * HOUR)),
        Piece(HOUR_S, Span(8 * HOUR, DAY)),
        Piece(DAY_S, Span(DAY, 3 * DAY)),
    ]
    assert plan.spans == [hole]
    assert within(hole.start, plan.spans) and not within(hole.end, plan.spans)
