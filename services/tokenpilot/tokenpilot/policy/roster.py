"""The ready instances of a pool as arrays, made once for as long as they stay the same. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView
from tokenfleet.load.table import Floats, Ints


@dataclass(frozen=True)
class Roster:
    """Instances in a stable order, and where the load table has them."""

    instances: Sequence[InstanceView]
    names: list[str]
    slots: Ints
    block_size_tokens: Floats
    max_prompt_tokens: Floats

    @cached_property
    def position(self) -> dict[str, int]:
        """Of each instance, by name."""
        return {name: position for position, name in enumerate(self.names)}

    def of(self, which: npt.NDArray[np.bool_]) -> "Roster":
        """Some of the instances."""
        positions = np.flatnonzero(which).tolist()
        return Roster(
            [self.instances[position] for position in positions],
            [self.names[position] for position in positions],
            self.slots[positions],
            self.block_size_tokens[positions],
            self.max_prompt_tokens[positions],
        )


def roster_of(instances: Sequence[InstanceView], load: LoadView) -> Roster:
    """The roster of some instances that `load` knows."""
    records = [view.record for view in instances]
    longest = [record.profile.longest_prompt_tokens for record in records]
    names = [record.instance for record in records]
    return Roster(
        instances,
        names,
        load.slots(names),
        np.array([record.block_size_tokens for record in records], dtype=float),
        np.array(longest, dtype=float),
    )
