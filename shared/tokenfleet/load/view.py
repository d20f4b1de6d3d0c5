"""Applies what happens to requests to the shadows of the engines. Pure; every change is idempotent.

Times are monotonic engine seconds.
"""

from collections import OrderedDict
from collections.abc import Iterable
from math import inf

from tokenfleet.contracts.fleet import InstanceRecord, InstanceState
from tokenfleet.load.shadow import InFlight, Observation, Shadow
from tokenfleet.load.table import Ints, LoadTable, RequestColumns, slots_array

REMEMBERED_ENDS = 10_000
"""Ended requests remembered, so that a late `routed` does not bring one back to life."""


class LoadView:
    """Shadows of all engines of a site, and the requests in flight there."""

    def __init__(self) -> None:
        self.table = LoadTable()
        self._shadows: dict[str, Shadow] = {}
        self._slots: dict[str, int] = {}
        self._free_slots: list[int] = []
        self._requests: dict[str, InFlight] = {}
        self._ended_attempt: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def slots(self, instances: Iterable[str]) -> Ints:
        """Where the table has these instances."""
        slots = self._slots
        return slots_array([slots[name] if name in slots else self._slot(name) for name in instances])

    def outstanding(self, instance: str) -> int:
        """Requests this view knows at an instance."""
        shadow = self._shadows.get(instance)
        return len(shadow.requests) if shadow else 0

    def pending_longer(self, instance: str, tokens: int) -> int:
        """Prompts at an instance that have no first token yet and are longer than so many tokens."""
        shadow = self._shadows.get(instance)
        return sum(request.input_tokens > tokens for request in shadow.pending.values()) if shadow else 0

    def joined(self, record: InstanceRecord) -> None:
        """An instance is registered, perhaps with another profile than before."""
        shadow = self._shadow(record.instance)
        if shadow.profile != record.profile:
            shadow.profile = record.profile
            self._write(shadow)

    def set_factors(self, instance: str, prefill_factor: float, step_factor: float) -> None:
        """What was learned of an engine's speed against its profile."""
        shadow = self._shadow(instance)
        shadow.prefill_factor, shadow.step_factor = prefill_factor, step_factor
        self._write(shadow)

    def reading(self, state: InstanceState, taken_s: float, now_s: float) -> None:
        """Telemetry of one instance, as it was at `taken_s`."""
        if state.reachable:
            shadow = self._shadow(state.instance)
            self._assume_first_tokens(shadow, now_s)
            shadow.read(state, taken_s, now_s)
            self._write(shadow)

    def routed(
        self,
        request_id: str,
        attempt: int,
        instance: str,
        input_tokens: int,
        reused_tokens: int,
        now_s: float,
        *,
        tpot_objective_s: float | None = None,
        length_row: int = 0,
        max_output_tokens: int = 0,
        streamed: bool = True,
        expected: bool = False,
    ) -> None:
        """A request was sent to an instance, or is `expected` to be. A later attempt replaces an earlier one.

        What is expected takes room until it is known where the request really went. Of what is not `streamed` no first token
        will be told.
        """
        known = self._requests.get(request_id)
        if known is not None:
            if known.attempt > attempt or (known.attempt == attempt and (expected or not known.expected)):
                return
            self._leave(known, now_s, None)
        if self._ended_attempt.get(request_id, 0) >= attempt:
            return
        shadow = self._shadow(instance)
        self._assume_first_tokens(shadow, now_s)
        reused = min(reused_tokens, max(0, input_tokens - 1))
        request = InFlight(
            request_id,
            attempt,
            instance,
            input_tokens,
            reused,
            shadow.compute_s(input_tokens - reused, reused),
            now_s,
            tpot_objective_s=tpot_objective_s,
            length_row=length_row,
            max_output_tokens=max_output_tokens,
            expected=expected,
            streamed=streamed,
        )
        self._requests[request_id] = request
        shadow.enqueue(request, now_s)
        self._write_request(request)
        self._write(shadow)

    def first_token(self, request_id: str, now_s: float) -> Observation | None:
        """Its prefill is done, and so is every prefill ahead of it."""
        request = self._requests.get(request_id)
        if request is None or request.first_token_s is not None:
            return None
        shadow = self._shadow(request.instance)
        self._assume_first_tokens(shadow, now_s, request)
        observation = shadow.first_token(request, now_s)
        self._write_request(request)
        self._write(shadow)
        return observation

    def ended(
        self, request_id: str, attempt: int, now_s: float, output_tokens: int | None = None
    ) -> Observation | None:
        """An attempt left its instance, in whatever way; `output_tokens` when its answer was complete."""
        self._ended_attempt[request_id] = max(attempt, self._ended_attempt.get(request_id, 0))
        if len(self._ended_attempt) > REMEMBERED_ENDS:
            self._ended_attempt.popitem(last=False)
        request = self._requests.get(request_id)
        if request is None or request.attempt > attempt:
            return None
        return self._leave(request, now_s, output_tokens)

    def drop_instance(self, instance: str) -> None:
        """The instance restarted or left: nothing is running there any more."""
        shadow = self._shadows.pop(instance, None)
        if shadow is None:
            return
        for request in shadow.requests:
            self._requests.pop(request.request_id, None)
        slot = self._slots.pop(instance)
        self._free_slots.append(slot)
        self.table.clear(slot)

    def expire(self, before_s: float, now_s: float) -> int:
        """Forget requests routed before a time: their end was never reported. Returns how many."""
        old = [request for request in self._requests.values() if request.routed_s < before_s]
        for request in old:
            self._leave(request, now_s, None)
        return len(old)

    def _leave(self, request: InFlight, now_s: float, output_tokens: int | None) -> Observation | None:
        del self._requests[request.request_id]
        shadow = self._shadow(request.instance)
        slot = self._slots[request.instance]
        self._assume_first_tokens(shadow, now_s)
        pending = request.first_token_s is None
        observation = shadow.leave(request, now_s, output_tokens)
        last = self.table.remove_request(slot, request.row)
        moved = shadow.requests.pop()
        if last != request.row:
            shadow.requests[request.row] = moved
            moved.row = request.row
        if pending:
            # Those behind it now run earlier.
            self.table.shift_compute(slot, request.compute_through_s, request.compute_s)
        self._write(shadow)
        return observation

    def _assume_first_tokens(self, shadow: Shadow, now_s: float, before: InFlight | None = None) -> None:
        for request in shadow.assume_first_tokens(now_s, before):
            self._write_request(request)

    def _slot(self, instance: str) -> int:
        self._shadow(instance)
        return self._slots[instance]

    def _shadow(self, instance: str) -> Shadow:
        shadow = self._shadows.get(instance)
        if shadow is None:
            shadow = self._shadows[instance] = Shadow(instance)
            self._slots[instance] = self._free_slots.pop() if self._free_slots else len(self._slots)
            self.table.clear(self._slots[instance])
            self._write(shadow)
        return shadow

    def _write(self, shadow: Shadow) -> None:
        self.table.write_instance(self._slots[shadow.instance], shadow.columns())

    def _write_request(self, request: InFlight) -> None:
        decoding = request.first_token_s is not None
        columns = RequestColumns[float](
            first_token_s=request.first_token_s if request.first_token_s is not None else inf,
            first_iteration=request.first_iteration if decoding else inf,
            compute_through_s=request.compute_through_s,
            context_tokens=request.input_tokens,
            tpot_objective_s=request.tpot_objective_s if request.tpot_objective_s is not None else inf,
            length_row=request.length_row,
            max_output_tokens=request.max_output_tokens or inf,
        )
        self.table.write_request(self._slots[request.instance], request.row, columns)
