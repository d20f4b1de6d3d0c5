"""The figures of docs/lab-trust.md, from the JSON of both comparisons and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import TrustError
from lab.trust.agreement import QUANTITIES

ENGINE_FILE = "engine.json"
DYNAMO_FILE = "dynamo.json"
BEGIN = "<!-- figures: made by `tokenfleet lab report` -->"
END = "<!-- end of figures -->"


def rewrite(page: Path, runs: Path) -> None:
    """Put the figures of the runs into a page, between its two marks.

    Raises:
        TrustError: a run is missing or not one, or the page has no marks.
    """
    text = page.read_text(encoding="utf-8")
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise TrustError(f"{page} has no place for figures: put `{BEGIN}` and `{END}` on lines of their own")
    page.write_text(f"{before}{BEGIN}\n\n{figures_markdown(runs)}\n{END}{after}", encoding="utf-8")


def figures_markdown(runs: Path) -> str:
    """The figures as Markdown."""
    engine, dynamo = _read(runs / ENGINE_FILE), _read(runs / DYNAMO_FILE)
    try:
        lines = [*_engine(engine), *_dynamo(dynamo)]
    except (KeyError, TypeError) as error:
        raise TrustError(f"{runs} holds something else than trust runs: {error!r} is missing") from error
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        command = path.stem
        raise TrustError(
            f"{path} is not a run ({error}): make it with `tokenfleet lab trust {command} TRACE --json {path}`"
        ) from error


def _engine(run: dict[str, Any]) -> Iterator[str]:
    yield (
        f"**Engine.** {run['trace']}, {run['requests']} requests, one emulated engine at "
        f"{run['time_scale']:g}x real time; the machine was late by {run['disturbance_s'] * 1000:.0f} ms of "
        "engine time."
    )
    yield ""
    yield from _agreement("engine", run["agreement"])


def _dynamo(run: dict[str, Any]) -> Iterator[str]:
    for speed, found in run["speeds"].items():
        yield f"**Dynamo, round robin at {speed}x.** {run['trace']}."
        yield ""
        yield from _agreement("Dynamo's replay", found["agreement"])
    for speed, found in run["speeds"].items():
        yield f"**Routers over Dynamo's mock engine at {speed}x.**"
        yield ""
        yield "| | TTFT P50/P95, s | TPOT P50/P95, ms | reused | refused | met | goodput, tokens/s |"
        yield "|---|---|---|---|---|---|---|"
        for name, figures in found["dynamo"].items():
            yield f"| Dynamo's replay: {name} | {_figures(figures)} |"
        for name, figures in found["simulator"].items():
            yield f"| simulator: {name} | {_figures(figures)} |"
        yield ""
    timing = run["timing"]
    yield (
        f"**Wall time.** {timing['requests']:,} requests at {timing['speed']:g}x, {timing['workers']} engines, "
        f"round robin, {timing['block_tokens']}-token blocks, one after the other on the same machine (load "
        f"average {timing['load_before']:.1f} before): Dynamo's replay {timing['dynamo_s']:.1f} s "
        f"({timing['dynamo_cpu_s']:.1f} s of CPU), the simulator {timing['ours_s']:.1f} s "
        f"({timing['ours_cpu_s']:.1f} s)."
    )


def _agreement(reference: str, found: dict[str, Any]) -> Iterator[str]:
    yield f"| | {reference} | simulator | difference (bar {found['bar']:.0%}) |"
    yield "|---|---|---|---|"
    for name, label, factor in QUANTITIES:
        quantity = found["quantities"][name]
        yield (
            f"| {label} | {quantity['reference'] * factor:,.1f} | {quantity['ours'] * factor:,.1f} | "
            f"{quantity['difference']:+.1%} |"
        )
    yield ""


def _figures(found: dict[str, Any]) -> str:
    return " | ".join(
        (
            f"{found['ttft_p50_s']:.2f}/{found['ttft_p95_s']:.2f}",
            f"{found['tpot_p50_s'] * 1000:.1f}/{found['tpot_p95_s'] * 1000:.1f}",
            f"{found['prefix_reuse']:.1%}",
            f"{1 - found['answered'] / found['offered']:.1%}",
            f"{found['attainment']:.1%}",
            f"{found['goodput_tokens_per_s']:,.0f}",
        )
    )
