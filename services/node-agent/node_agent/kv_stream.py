"""The KV-event streams of one engine, one for each data-parallel rank, into one index."""

import asyncio
from collections.abc import Sequence

from node_agent.kv_source import KvSource, StreamCounts
from node_agent.policy.engine_spec import KvEndpoint
from node_agent.policy.kv_index import KvIndex


class KvStream:
    """Keeps an index up to date with what an engine publishes."""

    def __init__(self, index: KvIndex, endpoints: Sequence[KvEndpoint]) -> None:
        self.index = index
        self.counts = StreamCounts()
        self._restart_generation: int | None = None
        self._sources = [
            KvSource(index, number, endpoint, self.counts) for number, endpoint in enumerate(endpoints)
        ]

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def restart(self, generation: int) -> None:
        """Another engine process answers: the next `poll` forgets the old one's blocks and replays the new one's."""
        self._restart_generation = generation
        for source in self._sources:
            source.interrupt()

    async def poll(self) -> None:
        """Take in what has arrived from every rank; on the first call also what came before."""
        if self._restart_generation is not None:
            self.index.restart(self._restart_generation)
            self._restart_generation = None
            for source in self._sources:
                source.begin_anew()
        await asyncio.gather(*(source.poll() for source in self._sources))
