"""TokenFleet's deciders as one router, driven as the lab drives them: told only what a router is told in production."""

from collections.abc import Sequence
from typing import Any

from fleets import record, request, state

from lab.sim.api import Arrival, Decision, Route
from lab.sim.tokenfleet_policy import TokenFleetPolicy
from tokenfleet.contracts.policy import Policy


class Router:
    """Engines that were just read as idle, and a clock that the test moves."""

    def __init__(self, *engines: str, admission: bool = False) -> None:
        self.now_s = 0.0
        self._policy = TokenFleetPolicy(0, Policy(admission=admission))
        self._at: dict[str, str] = {}
        self._probes = 0
        self._engines = list(engines)
        for name in engines:
            self.join(name)

    # -- what happens to engines

    def join(self, engine: str, generation: int = 1, **changes: Any) -> None:
        """An engine process registers and says that it is idle."""
        self._policy.joined(record(engine, generation=generation, **changes), self.now_s)
        self.read(engine, generation=generation)

    def leave(self, engine: str) -> None:
        self._policy.left(engine, self.now_s)

    def read(self, engine: str, **reading: Any) -> None:
        """Telemetry arrives, taken now; what it does not say is that of an idle engine."""
        self._policy.reading(state(engine, time_ns=round(self.now_s * 1e9), **reading), self.now_s)

    def cache(self, engine: str, stored: Sequence[int] = (), removed: Sequence[int] = ()) -> None:
        """KV events of an engine arrive."""
        self._policy.blocks(engine, stored, removed, self.now_s)

    def wait(self, seconds: float) -> None:
        """Time passes and nobody says anything."""
        self.now_s += seconds

    # -- what happens to requests

    def send(
        self, request_id: str, input_tokens: int = 1_000, blocks: Sequence[int] = (), **spec: Any
    ) -> Decision:
        """A request arrives and is decided; its client waits ten minutes."""
        spec.setdefault("deadline_ns", round((self.now_s + 600.0) * 1e9))
        arrival = Arrival(request_id, self.now_s, "acme", request(input_tokens, **spec), tuple(blocks))
        decision = self._policy.decide(arrival, self.now_s)
        if isinstance(decision, Route):
            self._at[request_id] = decision.instance
        return decision

    def sent_to(
        self, request_id: str, input_tokens: int = 1_000, blocks: Sequence[int] = (), **spec: Any
    ) -> str:
        """A request arrives, is routed, and stays: where to."""
        decision = self.send(request_id, input_tokens, blocks, **spec)
        assert isinstance(decision, Route), decision
        return decision.instance

    def fill(self, engine: str, request_id: str, input_tokens: int) -> None:
        """Give one engine a request, by leaving it no choice."""
        others = tuple(name for name in self._engines if name != engine)
        assert self.sent_to(request_id, input_tokens, excluded_instances=others) == engine

    def probe(self, input_tokens: int = 1_000, blocks: Sequence[int] = (), **spec: Any) -> Route:
        """How one more request would be decided; it goes away again without a token."""
        self._probes += 1
        name = f"probe-{self._probes}"
        decision = self.send(name, input_tokens, blocks, **spec)
        assert isinstance(decision, Route), decision
        self.end(name, output_tokens=0)
        return decision

    def first_token(self, request_id: str) -> None:
        self._policy.first_token(request_id, self._at[request_id], self.now_s)

    def end(self, request_id: str, output_tokens: int = 100) -> None:
        """It is over; without output tokens it was not completed."""
        self._policy.ended(request_id, self._at[request_id], output_tokens, self.now_s)
