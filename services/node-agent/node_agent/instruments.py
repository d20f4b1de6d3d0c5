"""The agent's own metrics: read from the engines when somebody asks, so that they cost nothing otherwise."""

import math
from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from node_agent.agent import NodeAgent
from node_agent.engine import Engine
from node_agent.kv_source import StreamCounts

_PREFIX = "tokenfleet.node_agent"


def register(meter: Meter, agent: NodeAgent) -> None:
    """Declare every instrument."""

    def of_each(read: Callable[[Engine], float]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for name, engine in list(agent.engines.items()):
                value = read(engine)
                if math.isfinite(value):
                    yield Observation(value, {"tokenfleet.instance": name})

        return [observe]

    def of_streams(read: Callable[[StreamCounts], int]) -> list[Callable[..., Iterable[Observation]]]:
        return list(of_each(lambda engine: read(engine.stream.counts) if engine.stream else math.nan))

    def ignored(_: CallbackOptions) -> Iterable[Observation]:
        for name, engine in list(agent.engines.items()):
            for reason, blocks in engine.index.ignored.items():
                yield Observation(blocks, {"tokenfleet.instance": name, "tokenfleet.reason": reason})

    meter.create_observable_gauge(
        f"{_PREFIX}.scrape.age",
        of_each(lambda engine: engine.scrape_age_s),
        "s",
        "Since the engine's metrics were last read.",
    )
    meter.create_observable_counter(
        f"{_PREFIX}.scrape.errors",
        of_each(lambda engine: engine.scrape_errors),
        description="Failed readings.",
    )
    meter.create_observable_gauge(
        f"{_PREFIX}.kv.blocks",
        of_each(lambda engine: len(engine.index)),
        description="Cached blocks indexed on the accelerator.",
    )
    meter.create_observable_gauge(
        f"{_PREFIX}.kv.offloaded_blocks",
        of_each(lambda engine: engine.index.offloaded),
        description="Cached blocks indexed in host memory or on disk.",
    )
    meter.create_observable_gauge(
        f"{_PREFIX}.kv.complete",
        of_each(lambda engine: engine.index.complete if engine.stream else math.nan),
        description="1: nothing is known to be missing from the index; 0: something is.",
    )
    meter.create_observable_counter(
        f"{_PREFIX}.kv.batches",
        of_streams(lambda counts: counts.batches),
        description="KV-event batches taken in.",
    )
    meter.create_observable_counter(
        f"{_PREFIX}.kv.gaps",
        of_streams(lambda counts: counts.gaps),
        description="Gaps in the event sequence.",
    )
    meter.create_observable_counter(
        f"{_PREFIX}.kv.resets", of_streams(lambda counts: counts.resets), description="Indexes begun anew."
    )
    meter.create_observable_counter(
        f"{_PREFIX}.kv.undecodable",
        of_streams(lambda counts: counts.undecodable),
        description="Messages that are no KV events.",
    )
    meter.create_observable_counter(
        f"{_PREFIX}.kv.ignored", [ignored], description="Stored blocks left out of the index, by reason."
    )
