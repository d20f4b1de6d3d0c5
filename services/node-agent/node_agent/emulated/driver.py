"""Runs the engine model against the clock.

The model knows exactly when each token is due. The driver sleeps until the next first token or finish, or
until enough iterations have passed for the next chunk of every stream, and then tells the waiting requests.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Literal

from tokenfleet.blocks import TokenIds
from tokenfleet.clock import Clock
from tokenfleet.engine.kv_cache import KvChange
from tokenfleet.engine.model import EngineModel
from tokenfleet.engine.requests import EngineRequest, FirstToken

FinishReason = Literal["stop", "length"]
TIMER_STEP_S = 0.001
"""Event loops round timers to milliseconds: rounding up ourselves, a timer never fires before its time."""


class Generation:
    """A request in the engine, as its HTTP handler sees it."""

    def __init__(
        self, request: EngineRequest, prompt: TokenIds, finish_reason: FinishReason, *, stream: bool
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.finish_reason: FinishReason = finish_reason
        self.stream = stream
        self.produced_tokens = 0
        self.reused_tokens = 0
        self.finished = False
        self._progress = asyncio.Event()

    def advance(self, produced_tokens: int, *, finished: bool = False) -> None:
        """More tokens are there. One who does not stream is woken only by the last."""
        self.produced_tokens = produced_tokens
        self.finished = finished
        if self.stream or finished:
            self._progress.set()

    async def progress(self) -> None:
        """Wait until there are more tokens."""
        await self._progress.wait()
        self._progress.clear()


class EngineDriver:
    """One engine in real time.

    Args:
        model: the engine; only the driver may touch it.
        clock: in whose engine seconds it runs.
        stream_interval: iterations between the chunks of a stream.
        on_kv_changes: told at most once per wake what the cache stored and removed, while the requests it
            names are still known to `prompt_blocks`.
    """

    def __init__(
        self,
        model: EngineModel,
        clock: Clock,
        stream_interval: int,
        on_kv_changes: Callable[[list[KvChange]], None],
    ) -> None:
        self.model = model
        self.ended: Counter[str] = Counter()
        """Requests by finish reason: stop, length or abort."""
        self._clock = clock
        self._stream_interval = stream_interval
        self._on_kv_changes = on_kv_changes
        self._generations: dict[str, Generation] = {}
        self._flush_at = 0
        """The iteration after which all streams get what was produced."""
        self._timer: asyncio.TimerHandle | None = None

    def submit(
        self,
        request: EngineRequest,
        prompt: TokenIds,
        finish_reason: FinishReason,
        *,
        stream: bool,
    ) -> Generation:
        """Give a request to the engine, which it joins now.

        Raises:
            ContextTooLongError: the prompt can never run here.
        """
        self.model.add(request, self._clock.now_s())
        generation = Generation(request, prompt, finish_reason, stream=stream)
        self._generations[request.request_id] = generation
        self.refresh()
        return generation

    def cancel(self, generation: Generation) -> None:
        """The client went away: the engine drops the request, unless it has finished."""
        request_id = generation.request.request_id
        if self.model.cancel(request_id, self._clock.now_s()) is not None:
            self.ended["abort"] += 1
            self._publish_changes()
            del self._generations[request_id]
        self.refresh()

    def clear_cache(self) -> bool:
        """Drop the prefix cache. Returns False, and does nothing, while requests run."""
        self.refresh()
        cleared = self.model.kv.clear()
        self.refresh()
        return cleared

    def prompt_blocks(self, request_id: str, first_block: int, blocks: int) -> list[int]:
        """The token ids of some blocks of a prompt."""
        block_size = self.model.block_size
        start, end = first_block * block_size, (first_block + blocks) * block_size
        return self._generations[request_id].prompt[start:end].tolist()

    def refresh(self) -> None:
        """Bring everything up to the present, and set the timer for what comes next."""
        events = self.model.advance(self._clock.now_s())
        self._publish_changes()
        for event in events:
            generation = self._generations.get(event.request_id)
            if generation is None:
                continue  # It had its first token in the moment in which it was cancelled.
            if isinstance(event, FirstToken):
                generation.reused_tokens = event.reused_tokens
                generation.advance(1)
            else:
                del self._generations[event.request_id]
                self.ended[generation.finish_reason] += 1
                generation.advance(event.output_tokens, finished=True)
        if self.model.iterations >= self._flush_at:
            self._flush_streams()
        self._set_timer()

    def stop(self) -> None:
        """Tell nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _publish_changes(self) -> None:
        if changes := self.model.kv.take_changes():
            self._on_kv_changes(changes)

    def _flush_streams(self) -> None:
        self._flush_at = self.model.iterations + self._stream_interval
        for request_id, generation in self._generations.items():
            if generation.stream and generation.produced_tokens:
                generation.advance(self.model.produced_tokens(request_id))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        upcoming = self.model.next_event(max(1, self._flush_at - self.model.iterations))
        if upcoming is not None:
            wall_s = (upcoming.time_s - self._clock.now_s()) / self._clock.time_scale
            steps = max(1, math.ceil(wall_s / TIMER_STEP_S))
            self._timer = asyncio.get_running_loop().call_later(steps * TIMER_STEP_S, self.refresh)
