"""The policies every load balancer has: random, round robin, least requests, power of two choices.

They decide on the router's own count of requests in flight, never on telemetry. Random, round robin and least
requests as in Envoy and nginx (least_conn); ties of least requests are drawn, as Envoy's are.
"""

from collections.abc import Sequence

from lab.baselines.common import Router
from lab.sim.api import Arrival


class RandomChoice(Router):
    """Any instance, each equally likely."""

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        return self.random.choice(usable)


class RoundRobin(Router):
    """One after the other, in order of their names; a request's turn passes over instances it may not use."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._turn = 0

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        self._turn += 1
        return usable[(self._turn - 1) % len(usable)]


class LeastRequests(Router):
    """The instance with the fewest requests in flight."""

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        return self.least_requests(usable)


class PowerOfTwo(Router):
    """The less loaded of two instances drawn (Mitzenmacher, IEEE TPDS 12(10), 2001; vLLM router, SMG).

    SMG's version compares tokens in use when both of its load reports are there; this is the published form, which
    compares requests in flight.
    """

    def choose(self, arrival: Arrival, usable: Sequence[str], now_s: float) -> str:
        if len(usable) == 1:
            return usable[0]
        first, second = self.random.sample(range(len(usable)), 2)
        return self.least_requests((usable[first], usable[second]))
