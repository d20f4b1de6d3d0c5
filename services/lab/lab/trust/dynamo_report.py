"""What a comparison with Dynamo found, as tables and as JSON."""

from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lab.trust.agreement import agreement_table
from lab.trust.dynamo_compare import SpeedResult, Timing
from lab.trust.served import Figures


def round_robin_table(result: SpeedResult) -> Table:
    """Both simulators on the same requests, engine and routing."""
    title = f"Round robin at {result.speed:g}x: two simulators, the same requests and engine"
    return agreement_table(title, "Dynamo's replay", "simulator", result.agreement)


def routers_table(result: SpeedResult) -> Table:
    """Every router over the same engine."""
    table = Table(
        title=f"Routers over Dynamo's mock engine at {result.speed:g}x",
        title_justify="left",
        caption="Met: TTFT within 4 s (in proportion above 16k tokens) and TPOT within 100 ms. Goodput: output "
        "tokens/s of those.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for heading in ("TTFT s\nP50/P95", "TPOT ms\nP50/P95", "reused", "refused", "met", "goodput"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, found in result.dynamo.items():
        table.add_row(f"Dynamo: {name}", *_cells(found))
    for name, found in result.ours.items():
        table.add_row(name, *_cells(found))
    return table


def timing_table(timing: Timing) -> Table:
    """Who replays the trace faster."""
    table = Table(
        title=f"{timing.requests:,} requests at {timing.speed:g}x, {timing.workers} engines, round robin,\n"
        f"{timing.block_tokens}-token blocks; load average {timing.load_before:.1f} before",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for heading in ("", "wall time, s", "CPU time, s"):
        table.add_column(heading, justify="right")
    table.add_row("Dynamo's replay", f"{timing.dynamo_s:.1f}", f"{timing.dynamo_cpu_s:.1f}")
    table.add_row("simulator", f"{timing.ours_s:.1f}", f"{timing.ours_cpu_s:.1f}")
    return table


def as_json(results: list[SpeedResult], timing: Timing | None) -> dict[str, Any]:
    """Everything found."""
    return {
        "speeds": {
            f"{result.speed:g}": {
                "agreement": result.agreement.as_json(),
                "dynamo": msgspec.to_builtins(result.dynamo),
                "simulator": msgspec.to_builtins(result.ours),
            }
            for result in results
        },
        "timing": msgspec.to_builtins(timing),
    }


def _cells(found: Figures) -> tuple[str, ...]:
    return (
        f"{found.ttft_p50_s:.2f}/{found.ttft_p95_s:.2f}",
        f"{found.tpot_p50_s * 1000:.1f}/{found.tpot_p95_s * 1000:.1f}",
        f"{found.prefix_reuse:.1%}",
        f"{1 - found.answered / found.offered:.1%}",
        f"{found.attainment:.1%}",
        f"{found.goodput_tokens_per_s:,.0f}",
    )
