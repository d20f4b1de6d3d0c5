"""`tokenfleet demo`: the same trace through the same fleet twice, under TokenFleet and under round robin."""

import click
import uvloop

from lab.replay.command import replay_with_progress
from lab.replay.options import ReplayOptions
from lab.replay.own_stack import own_stack
from lab.replay.report import compare
from lab.scenarios.load import find_trace
from lab.traces.load import GENERATED, open_trace
from lab.traces.model import Trace
from tokenfleet.contracts.ledger import Report, Summary
from tokenfleet.contracts.policy import Routing
from tokenfleet.terminal import output

CONVERSATION_TRACE = "mooncake_conversation_trace.jsonl"
ENGINES = 8
OURS = "TokenFleet"
BASELINE = "round robin"
RUNS: tuple[tuple[str, Routing], ...] = ((OURS, "predicted"), (BASELINE, "round_robin"))


@click.command()
@click.option(
    "--trace",
    "trace_name",
    help=f"A trace file. Default: {CONVERSATION_TRACE} if it is found, else generated.",
)
@click.option("--requests", type=click.IntRange(min=1), default=400, show_default=True)
@click.option(
    "--speed", default=1.5, show_default=True, help="Arrivals come X times faster than in the trace."
)
@click.option("--time-scale", default=5.0, show_default=True, help="Emulated engines run X times faster.")
def demo(trace_name: str | None, requests: int, speed: float, time_scale: float) -> None:
    """Show what TokenFleet does for a fleet of eight emulated engines, next to round robin."""
    name = trace_name or find_trace(CONVERSATION_TRACE, GENERATED)
    trace = open_trace(name, requests)
    click.echo(
        f"{len(trace.requests)} requests of {trace.source} at {speed:g}x its pace, over {ENGINES} emulated "
        f"engines running {time_scale:g}x faster than real ones. Starting the fleet ..."
    )
    reports = uvloop.run(_run_both(trace, speed, time_scale))
    output().print(compare("The same requests, twice", reports))
    click.echo(conclusion(reports[OURS].total, reports[BASELINE].total))


async def _run_both(trace: Trace, speed: float, time_scale: float) -> dict[str, Report]:
    reports: dict[str, Report] = {}
    async with own_stack(time_scale, ENGINES) as stack:
        for label, policy in RUNS:
            options = ReplayOptions(speed=speed, policy=policy)
            result = await replay_with_progress(stack, trace, options, label=f"{label:<{len(BASELINE)}}")
            result.check()
            reports[label] = result.report
    return reports


def conclusion(ours: Summary, baseline: Summary) -> str:
    """What the two runs say, in one line; better or worse."""
    if not baseline.goodput_tokens_per_s:
        goodput = f"{OURS} delivered {ours.goodput_tokens_per_s:,.0f} tokens/s within the objective, {BASELINE} none"
    else:
        goodput = (
            f"{OURS} delivered {ours.goodput_tokens_per_s / baseline.goodput_tokens_per_s:.2f} times the goodput "
            f"of {BASELINE} ({ours.goodput_tokens_per_s:,.0f} against {baseline.goodput_tokens_per_s:,.0f} tokens/s)"
        )
    if ours.attainment_offered is None or baseline.attainment_offered is None:
        return f"{goodput}."
    return (
        f"{goodput} and kept its promise for {ours.attainment_offered:.1%} of all requests offered, "
        f"instead of {baseline.attainment_offered:.1%}."
    )
