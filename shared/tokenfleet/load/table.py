"""All shadows as arrays, so that one decision looks at every instance in a few numpy operations."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

Number = TypeVar("Number", float, Floats)


class InstanceColumns(NamedTuple, Generic[Number]):
    """One instance, or (as arrays) many. Seconds and tokens; the engine's own, not yet corrected, where not said."""

    time_s: Number
    """When the rest was true."""
    iterations_per_s: Number
    iterations: Number
    decoding: Number
    context_tokens: Number
    """Of all decoding requests together, prompts and answers so far."""
    pending: Number
    """Requests without a first token."""
    pending_tokens: Number
    """To be computed for them."""
    pending_context_tokens: Number
    """Their whole prompts."""
    pending_compute_s: Number
    """Prefill arithmetic, without what an iteration costs anyway."""
    enqueued_compute_s: Number
    """Of everything that ever came here."""
    head_start_s: Number
    """When the oldest pending prompt could begin."""
    head_tokens: Number
    head_compute_s: Number
    blocked: Number
    """1 while the oldest pending prompt waits for room."""
    unknown_decoding: Number
    """Requests that telemetry counts and this view was never told of."""
    unknown_waiting: Number
    heard_s: Number
    kv_per_context: Number
    """KV tokens in use per token of context: below 1 where running requests share prefixes."""
    prefill_factor: Number
    """Learned: real seconds per second that the profile says, for prefill arithmetic."""
    step_factor: Number
    """The same for what an iteration costs besides."""
    base_s: Number
    decode_s_per_request: Number
    decode_s_per_context_token: Number
    prefill_s_per_token: Number
    attention_s_per_token_pair: Number
    restore_s_per_token: Number
    kv_capacity_tokens: Number
    iteration_budget_tokens: Number


class RequestColumns(NamedTuple, Generic[Number]):
    """One request at an instance, or (as arrays) many."""

    first_token_s: Number
    """Infinite while there is none."""
    first_iteration: Number
    """The shadow's iterations when the first token came."""
    compute_through_s: Number
    """`enqueued_compute_s` when it had come: what is enqueued beyond this runs after its prefill."""
    context_tokens: Number
    tpot_objective_s: Number
    length_row: Number
    max_output_tokens: Number


class LoadTable:
    """Columns of instances by `[column, slot]`, and of requests by `[column, slot, row]`."""

    def __init__(self) -> None:
        self._instances: Floats = np.zeros((len(InstanceColumns._fields), 8))
        self._requests: Floats = np.zeros((len(RequestColumns._fields), 8, 16))
        self._rows: Ints = np.zeros(8, dtype=np.intp)

    def write_instance(self, slot: int, columns: InstanceColumns[float]) -> None:
        """Set all of one instance."""
        self._grow(slot, 0)
        self._instances[:, slot] = columns

    def write_request(self, slot: int, row: int, columns: RequestColumns[float]) -> None:
        """Set one request; rows of a slot are filled from 0 on."""
        self._grow(slot, row)
        self._requests[:, slot, row] = columns
        self._rows[slot] = max(self._rows[slot], row + 1)

    def shift_compute(self, slot: int, beyond_s: float, seconds: float) -> None:
        """What was enqueued beyond a point runs earlier by so much."""
        through = self._requests[_COMPUTE_THROUGH, slot, : self._rows[slot]]
        through[through > beyond_s] -= seconds

    def remove_request(self, slot: int, row: int) -> int:
        """Take out a request; the last row takes its place. Returns which row that was."""
        last = int(self._rows[slot]) - 1
        self._requests[:, slot, row] = self._requests[:, slot, last]
        self._rows[slot] = last
        return last

    def clear(self, slot: int) -> None:
        """Nothing runs there."""
        self._grow(slot, 0)
        self._rows[slot] = 0

    def instances(self, slots: Ints) -> InstanceColumns[Floats]:
        """Columns of some instances, as arrays in the order of `slots`."""
        return InstanceColumns(*self._instances[:, slots])

    def requests(self, slots: Ints) -> tuple[RequestColumns[Floats], npt.NDArray[np.bool_]]:
        """Requests of some instances as `[slot, row]`, and which of those are there."""
        counts = self._rows[slots]
        widest = int(counts.max(initial=0))
        columns = RequestColumns(*self._requests[:, slots, :widest])
        return columns, np.arange(widest) < counts[:, None]

    def _grow(self, slot: int, row: int) -> None:
        columns, slots, rows = self._requests.shape
        if slot < slots and row < rows:
            return
        new_slots, new_rows = _room_for(slot, slots), _room_for(row, rows)
        requests = np.zeros((columns, new_slots, new_rows))
        requests[:, :slots, :rows] = self._requests
        instances = np.zeros((len(InstanceColumns._fields), new_slots))
        instances[:, :slots] = self._instances
        counts = np.zeros(new_slots, dtype=np.intp)
        counts[:slots] = self._rows
        self._requests, self._instances, self._rows = requests, instances, counts


def slots_array(slots: Sequence[int]) -> Ints:
    """Slots as an index array."""
    return np.array(slots, dtype=np.intp)


def _room_for(index: int, size: int) -> int:
    while size <= index:
        size *= 2
    return size


_COMPUTE_THROUGH = RequestColumns._fields.index("compute_through_s")
