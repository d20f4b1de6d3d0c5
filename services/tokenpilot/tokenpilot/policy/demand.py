"""What arrives at a pool, and how long its instances keep what they cached. Pure."""

from collections import deque
from dataclasses import dataclass, field

WEIGHT = 0.01
"""Of one arrival in the running means."""
OLDEST_S = 600.0
"""A cache that has not been filled once keeps its blocks at least this long."""


@dataclass(slots=True)
class _Cache:
    """Prompts sent to an instance while they fit its cache, as `(time, tokens)`."""

    prompts: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    tokens: int = 0
    oldest_s: float | None = None
    """When the blocks that would be evicted next were last used."""


class Demand:
    """Running means of a pool's arrivals, and the age of the oldest block of each cache."""

    def __init__(self) -> None:
        self.interval_s = 1.0
        """Between two arrivals."""
        self.work_s = 0.5
        """Prefill of one."""
        self._last_s: float | None = None
        self._caches: dict[str, _Cache] = {}

    def arrived(self, work_s: float, now_s: float) -> None:
        """A request arrived that needs so much prefill."""
        if self._last_s is not None:
            self.interval_s += WEIGHT * (now_s - self._last_s - self.interval_s)
        self._last_s = now_s
        self.work_s += WEIGHT * (work_s - self.work_s)

    def routed(self, instance: str, input_tokens: int, kv_capacity_tokens: int, now_s: float) -> None:
        """A prompt was sent to an instance: its blocks are the youngest there now."""
        cache = self._caches.setdefault(instance, _Cache())
        cache.prompts.append((now_s, input_tokens))
        cache.tokens += input_tokens
        while cache.tokens > kv_capacity_tokens:
            cache.oldest_s, tokens = cache.prompts.popleft()
            cache.tokens -= tokens

    def oldest_block_age_s(self, instance: str, now_s: float) -> float:
        """How long ago the blocks were used that the instance would evict next (least recently used first)."""
        cache = self._caches.get(instance)
        if cache is None or cache.oldest_s is None:
            return OLDEST_S
        return min(now_s - cache.oldest_s, OLDEST_S)

    def left(self, instance: str) -> None:
        """The instance is gone, and its cache with it."""
        self._caches.pop(instance, None)
