"""An explanation as tables for a person."""

from collections.abc import Callable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from console.explain.cells import ABSENT, CHOSEN, count, new_table, seconds
from console.explain.explanation import Attempt, Comparison, Explanation, filters_hit
from console.explain.sites import site_choices
from tokenfleet.contracts.requests import Candidate, Objective, Routed


def render(explanation: Explanation) -> RenderableType:
    """Everything there is to see, in the order in which it happened."""
    return Group(*_parts(explanation))


def _parts(explanation: Explanation) -> Iterator[RenderableType]:
    yield _request(explanation)
    yield from site_choices(explanation)
    for attempt in explanation.attempts:
        yield Text()
        yield from _attempt(attempt)
    yield Text()
    yield _outcome(explanation)
    yield Text()
    yield _steps(explanation)


def _request(explanation: Explanation) -> Table:
    e = explanation
    table = new_table("")
    table.show_header = False
    table.add_column(style="bold")
    table.add_column()
    client = f" (client's id: {e.client_request_id})" if e.client_request_id else ""
    table.add_row("request", f"{e.request_id}{client}")
    streamed = {True: ", streamed", False: ", not streamed", None: ""}[e.stream]
    table.add_row("asks for", f"{e.model or ABSENT} by tenant {e.tenant}{streamed}")
    table.add_row("class", e.request_class or ABSENT)
    blocks = f" ({e.prompt_blocks:,} full blocks)" if e.prompt_blocks is not None else ""
    table.add_row("tokens", f"{count(e.input_tokens)} in{blocks}, at most {count(e.max_output_tokens)} out")
    table.add_row("objective", _objective(e.objective))
    table.add_row("pool", f"{e.pool} at {e.site}")
    if e.time_scale != 1.0:
        table.add_row("clock", f"all times in engine seconds, {e.time_scale:g} to one real second")
    return table


def _attempt(attempt: Attempt) -> Iterator[RenderableType]:
    decision = attempt.decision
    title = Text(f"Attempt {attempt.attempt}: ", style="bold")
    if decision is None:
        yield title + Text(f"ingress alone sent it to {attempt.instance}; no decision reached it in time.")
    else:
        after = f" after {seconds(attempt.decided_after_s)} s" if attempt.decided_after_s is not None else ""
        yield title + Text(f"{decision.instance}{after}, because {decision.reason}.")
        yield _candidates(decision)
        yield from _filters(decision)
        yield from _expected_answer(decision)
    for other in attempt.superseded:
        yield Text(f"Also decided and not followed: {other.instance} ({other.reason}).", style="yellow")
    if attempt.failure:
        failure = attempt.failure
        yield Text(
            f"Failed before a token reached the client: {failure.reason}; "
            f"{failure.input_tokens:,} tokens in and {failure.output_tokens:,} out were wasted.",
            style="red",
        )


COLUMNS: tuple[tuple[str, Callable[[Candidate], str]], ...] = (
    ("cost s", lambda c: seconds(c.cost_s)),
    ("TTFT s", lambda c: seconds(c.predicted_ttft_s)),
    ("TPOT s", lambda c: seconds(c.predicted_tpot_s, 4)),
    ("backlog s", lambda c: seconds(c.backlog_s)),
    ("KV wait s", lambda c: seconds(c.kv_wait_s)),
    ("own prefill s", lambda c: seconds(c.own_prefill_s)),
    ("misses", lambda c: seconds(c.expected_misses)),
    ("reused", lambda c: count(c.reused_tokens)),
    ("offloaded", lambda c: count(c.offloaded_tokens)),
    ("decoding", lambda c: count(c.decoding)),
    ("pending", lambda c: count(c.pending)),
    ("KV", lambda c: ABSENT if c.kv_usage is None else f"{c.kv_usage:.0%}"),
    ("age s", lambda c: seconds(c.telemetry_age_s, 2)),
    ("index", lambda c: c.index or ABSENT),
)


def _candidates(decision: Routed) -> Table:
    able = [candidate for candidate in decision.candidates if candidate.filtered is None]
    shown = f"best {len(able)} of {decision.considered}" if decision.considered else "best first"
    table = new_table(f"Candidates, {shown}, draw {decision.draw:.4f}")
    table.add_column("")
    table.add_column("instance")
    for heading, _ in COLUMNS:
        table.add_column(heading, justify="right")
    for candidate in able:
        chosen = candidate.instance == decision.instance
        cells = [text(candidate) for _, text in COLUMNS]
        table.add_row(
            CHOSEN if chosen else "", candidate.instance, *cells, style="bold green" if chosen else ""
        )
    return table


def _filters(decision: Routed) -> Iterator[RenderableType]:
    hit = filters_hit(decision)
    if not hit:
        return
    table = new_table("Could not take it")
    table.add_column("reason")
    table.add_column("instances", justify="right")
    table.add_column("for example")
    for reason, instances in hit.items():
        examples = [c.instance for c in decision.candidates if c.filtered == reason]
        table.add_row(reason, f"{instances:,}", ", ".join(examples[:4]) or ABSENT)
    yield table


def _expected_answer(decision: Routed) -> Iterator[RenderableType]:
    if decision.expected_output_tokens is None:
        return
    previous = decision.previous_output_tokens
    because = f" (the answer before it had {previous:,})" if previous is not None else ""
    yield Text(f"Expected of the answer: {decision.expected_output_tokens:,.0f} tokens{because}.")


def _outcome(explanation: Explanation) -> RenderableType:
    ended, refused = explanation.ended, explanation.refused
    if ended is None:
        return Text(
            "The request is under way." if refused is None else "Refused; its end is not recorded yet."
        )
    parts: list[RenderableType] = []
    head = Text(f"Outcome: {ended.outcome}", style="bold")
    where = f" at {ended.instance}" if ended.instance and ended.outcome != "rejected" else ""
    exact = "" if ended.tokens_exact else " (an estimate: no usage arrived)"
    parts.append(
        head
        + Text(
            f" ({ended.status} {ended.reason}){where} after {seconds(ended.e2e_s)} s; tokens: "
            f"{ended.input_tokens:,} in, {ended.reused_tokens:,} of them reused, {ended.output_tokens:,} out{exact}."
        )
    )
    if refused is not None:
        retry = "" if refused.retry_after_s is None else f" Retry after {refused.retry_after_s:g} s."
        parts.append(Text(f"{refused.message}{retry}"))
    if explanation.attempts:
        parts.append(_comparisons(explanation))
    return Group(*parts)


def _comparisons(explanation: Explanation) -> Table:
    table = new_table("Predicted and happened")
    for heading in ("", "predicted s", "P90 s", "happened s", "ratio", "promised s"):
        table.add_column(heading, justify="left" if not heading else "right")
    objective = explanation.objective or Objective()
    ended = explanation.ended
    for attempt in explanation.attempts:
        name = "TTFT" if len(explanation.attempts) == 1 else f"TTFT, attempt {attempt.attempt}"
        table.add_row(f"{name}, from the decision", *_compared(attempt.ttft), "")
    ttft_s = ended.ttft_s if ended else None
    table.add_row("TTFT, from submission", "", "", seconds(ttft_s), "", seconds(objective.ttft_s))
    table.add_row("TPOT", *_compared(explanation.tpot, 4), seconds(objective.tpot_s, 4))
    return table


def _compared(comparison: Comparison, digits: int = 3) -> tuple[str, str, str, str]:
    return (
        seconds(comparison.predicted_s, digits),
        seconds(comparison.predicted_p90_s, digits),
        seconds(comparison.actual_s, digits),
        seconds(comparison.ratio, 2),
    )


def _steps(explanation: Explanation) -> Table:
    table = new_table("What was recorded")
    table.add_column("after s", justify="right")
    table.add_column("attempt", justify="right")
    table.add_column("event")
    table.add_column("")
    for step in explanation.steps:
        table.add_row(f"{step.after_s:.3f}", str(step.attempt), step.event, step.detail)
    return table


def _objective(objective: Objective | None) -> str:
    if objective is None or not objective.declared:
        return ABSENT
    terms = (("TTFT", objective.ttft_s), ("TPOT", objective.tpot_s), ("end to end", objective.e2e_s))
    return ", ".join(f"{name} {value:g} s" for name, value in terms if value is not None)
