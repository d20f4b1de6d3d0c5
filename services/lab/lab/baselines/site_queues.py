"""First come, first served queues at the sites, for balancers that send only to instances with nothing waiting."""

from collections.abc import Iterable, Sequence

from lab.baselines.common import abandoned
from lab.baselines.sites import SiteRouter
from lab.sim.api import Arrival, Decision, Hold, Refuse, Released


class QueueingSiteRouter(SiteRouter):
    """Holds a request at its entry site until `place` finds an instance, one head at a time."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._queues: dict[str, dict[str, Arrival]] = {}

    def place(self, arrival: Arrival, usable: Sequence[str]) -> str | None:
        """The instance for the request at the head of its site's queue; None to let it wait."""
        raise NotImplementedError

    def queued(self, site: str) -> int:
        """Requests waiting in a site's queue."""
        return len(self._queues.get(site, ()))

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str | Decision:
        queue = self._queues.setdefault(arrival.spec.entry_site, {})
        instance = None if queue else self.place(arrival, usable)
        if instance is not None:
            return instance
        queue[arrival.request_id] = arrival
        return Hold()

    def release(self, now_s: float) -> Iterable[Released]:
        released: list[Released] = []
        for queue in self._queues.values():
            while queue:
                head = next(iter(queue.values()))
                if abandoned(head, now_s):
                    del queue[head.request_id]
                    continue
                usable = self.usable(head.spec)
                instance = self.place(head, usable) if usable else None
                if usable and instance is None:
                    break
                del queue[head.request_id]
                decision = (
                    Refuse(503, "no_ready_instance")
                    if instance is None
                    else self.route(head, instance, now_s)
                )
                released.append(Released(head.request_id, decision))
        return released

    def ended(self, request_id: str, instance: str, output_tokens: int, now_s: float) -> None:
        for queue in self._queues.values():
            queue.pop(request_id, None)
        super().ended(request_id, instance, output_tokens, now_s)
