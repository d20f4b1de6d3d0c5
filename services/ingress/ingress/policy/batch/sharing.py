"""Who gets the free places of one ingress: tenants in turn, and of a tenant the batch that is due first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PIECE_LINES = 16
"""Lines of one batch claimed at a time, so that several ingresses share even a small one."""
CUT_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch with lines that may be tried now."""

    batch_id: str
    tenant: str
    endpoint: str
    input_file_id: str
    due_ns: int
    """Unix time of its deadline."""


class Window:
    """How many lines of one tenant run at once: halved when refused, grown by one per round of answers."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = float(limit)
        self._cut_s = float("-inf")

    @property
    def size(self) -> int:
        return int(self._size)

    def answered(self) -> None:
        self._size = min(float(self._limit), self._size + 1.0 / self._size)

    def refused(self, now_s: float) -> None:
        """A line was refused. Those refused within the same second are one sign, not many."""
        if now_s - self._cut_s >= CUT_EVERY_S:
            self._size = max(1.0, self._size / 2.0)
            self._cut_s = now_s


def allot(
    free: int,
    batches: Sequence[OpenBatch],
    running: Counter[str],
    windows: Mapping[str, int],
    weights: Mapping[str, float],
) -> dict[str, int]:
    """How many lines to claim of each batch.

    Args:
        free: places to give.
        batches: those with lines to run, the first due first.
        running: lines in progress here, by tenant.
        windows: how many of a tenant's may run at once.
        weights: a tenant's share of the places against others'; absent: 1.
    """
    held = running.copy()
    given: Counter[str] = Counter()
    queues: dict[str, list[OpenBatch]] = {}
    for batch in batches:
        queues.setdefault(batch.tenant, []).append(batch)
    while free > 0:
        waiting = [tenant for tenant, queue in queues.items() if queue and held[tenant] < windows[tenant]]
        if not waiting:
            break
        tenant = min(waiting, key=lambda name: held[name] / weights.get(name, 1.0))
        batch = queues[tenant][0]
        given[batch.batch_id] += 1
        held[tenant] += 1
        free -= 1
        if given[batch.batch_id] >= PIECE_LINES:
            queues[tenant].pop(0)
    return dict(given)
