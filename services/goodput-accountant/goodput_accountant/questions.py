"""What may be asked of the ledger."""

from collections.abc import Mapping

from tokenfleet.contracts.ledger import ReportRequest
from tokenfleet.errors import TokenFleetError

LATEST_NS = 2**63 - 1


class BadQuestionError(TokenFleetError):
    """A question that makes no sense, or has no answer; the message says why."""


def check_span(from_ns: int | None, to_ns: int | None) -> None:
    """Check the time bounds of a question.

    Raises:
        BadQuestionError: the span is empty, or a bound is no moment in unix nanoseconds.
    """
    for name, bound in (("begins", from_ns), ("ends", to_ns)):
        if bound is not None and not 0 <= bound <= LATEST_NS:
            raise BadQuestionError(f"The span {name} at {bound}, which is no time in unix nanoseconds.")
    if from_ns is not None and to_ns is not None and from_ns >= to_ns:
        raise BadQuestionError(
            f"The span is empty: it begins at {from_ns} and ends at {to_ns} (unix ns; the end is not part of it)."
        )


def check_text(*texts: str | None) -> None:
    """Check names and ids.

    Raises:
        BadQuestionError: one has a NUL, which no name has.
    """
    for text in texts:
        if text is not None and "\0" in text:
            raise BadQuestionError(f"{text!r} is no name: it has a NUL character.")


def check_report(request: ReportRequest, prices: Mapping[str, float]) -> None:
    """Check what a report is asked for.

    Raises:
        BadQuestionError: it contradicts itself, or is to be sorted by a cost that nobody can tell.
    """
    check_span(request.from_ns, request.to_ns)
    check_text(request.client_request_id_prefix, request.pool, request.tenant)
    if request.limit is not None and request.limit < 1:
        raise BadQuestionError(f"A report has at least 1 group, not {request.limit}.")
    if request.sort == "cost" and not prices:
        raise BadQuestionError(
            "Groups cannot be sorted by cost: no price is known here. The policy's gpu_hour_prices has one per pool, `*` "
            "for all others; sort by gpu for GPU-seconds."
        )
