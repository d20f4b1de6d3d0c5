"""SLOMax's queues of one pool, driven as the service drives them, in front of engines that do one prompt after another."""

from typing import Any

from fleets import request, view
from loads import idle

from slomax.policy.admission import Refuse, Start, Verdict
from slomax.policy.classify import entry_of
from slomax.policy.pool import PoolAdmission
from slomax.policy.scheduler import Released
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.load import OutputLengths

STEP_S = 0.05


class Pool:
    """Idle engines, and a clock that the test moves."""

    def __init__(self, *engines: str, policy: Policy | None = None) -> None:
        self.now_s = 0.0
        self.policy = policy or Policy()
        self.instances = [view(name) for name in engines]
        self.load = idle(*engines)
        self.admission = PoolAdmission(self.load, OutputLengths())
        self.started: list[str] = []
        """Requests in the order in which they started."""
        self.refused: dict[str, Refuse] = {}
        self._free_s = dict.fromkeys(engines, 0.0)
        self._ends: list[tuple[float, str]] = []
        self._occupied = 0

    def occupy(self, engine: str, tokens: int = 60_000) -> None:
        """A long prompt of nobody in particular is computed there."""
        self._occupied += 1
        name = f"on-{engine}-{self._occupied}"
        self.load.routed(name, 1, engine, tokens, 0, self.now_s)
        self._will_end(name, engine, tokens * 1.2e-4)

    def submit(
        self,
        request_id: str,
        tokens: int = 1_000,
        *,
        tenant: Tenant | str = "acme",
        left_s: float = 600.0,
        **spec: Any,
    ) -> Verdict:
        """A request arrives now."""
        who = Tenant(tenant=tenant) if isinstance(tenant, str) else tenant
        entry = entry_of(
            request_id, 1, request(tokens, **spec), who, self.policy, self.now_s, self.now_s, left_s
        )
        verdict = self.admission.submit(entry, self.instances, self.policy, self.now_s)
        if isinstance(verdict, Start):
            self._start(request_id, verdict, entry.tokens, entry.own_prefill_s)
        elif isinstance(verdict, Refuse):
            self.refused[request_id] = verdict
        return verdict

    def wait(self, seconds: float) -> None:
        """Time passes: engines finish what they have, and the queues are looked through."""
        until_s = self.now_s + seconds
        while self.now_s < until_s - 1e-9:
            self.now_s += STEP_S
            self._finish()
            for released in self.admission.release(self.instances, self.policy, self.now_s):
                self._released(released)

    def position(self, request_id: str) -> int:
        """How many are before it; fails the test if it does not wait."""
        place = self.admission.place_of(request_id, len(self.instances))
        assert place is not None, f"{request_id} does not wait"
        return place.position

    def _released(self, released: Released) -> None:
        entry = released.entry
        if isinstance(released.verdict, Start):
            self._start(entry.request_id, released.verdict, entry.tokens, entry.own_prefill_s)
        else:
            self.refused[entry.request_id] = released.verdict

    def _start(self, request_id: str, verdict: Start, tokens: int, prefill_s: float) -> None:
        assert verdict.instance is not None
        self.started.append(request_id)
        self.load.routed(request_id, 1, verdict.instance, tokens, 0, self.now_s)
        self._will_end(request_id, verdict.instance, prefill_s)

    def _will_end(self, request_id: str, engine: str, takes_s: float) -> None:
        self._free_s[engine] = max(self._free_s[engine], self.now_s) + takes_s
        self._ends.append((self._free_s[engine], request_id))

    def _finish(self) -> None:
        for at_s, request_id in [end for end in self._ends if end[0] <= self.now_s]:
            self._ends.remove((at_s, request_id))
            self.load.first_token(request_id, self.now_s)
            self.load.ended(request_id, 1, self.now_s)
            self.admission.first_token(request_id, self.now_s)
            self.admission.ended(request_id, self.now_s, completed=True, output_tokens=1)
