"""The bits that stand for instances in holder sets. Pure.

A bit stands for one life of an instance: from the first block stored until the instance is dropped. Dropping
takes the bit out of `live`, which ends the life at once wherever the bit still is; it is given to another life
only when it is nowhere any more.
"""

import numpy as np
import numpy.typing as npt

FEW = 32
"""Up to so many bits it is faster to take them one at a time."""
MAX_REMEMBERED = 64


class Lives:
    """Instance <-> bit, for the living."""

    def __init__(self) -> None:
        self.live = 0
        """The bits of all instances there are."""
        self.retired = 0
        """Those of lives that ended and may still be in holder sets."""
        self.position: dict[str, int] = {}
        """Of each instance's bit."""
        self._instances: list[str] = []
        self._bits: list[int] = []
        """The same objects each time: a thousand bits take 160 bytes."""
        self._free: list[int] = []
        self._remembered: dict[tuple[int, int], dict[str, int]] = {}

    def bit(self, instance: str) -> int:
        """The instance's bit; its life begins if it had none."""
        position = self.position.get(instance)
        if position is None:
            if self._free:
                position = self._free.pop()
                self._instances[position] = instance
            else:
                position = len(self._instances)
                self._instances.append(instance)
                self._bits.append(1 << position)
            self.position[instance] = position
            self.live |= self._bits[position]
            self._remembered.clear()
        return self._bits[position]

    def end(self, instance: str, *, unused: bool) -> None:
        """An instance's life ends; `unused` says that its bit is in no holder set."""
        position = self.position.pop(instance)
        self.live ^= self._bits[position]
        if unused:
            self._free.append(position)
        else:
            self.retired |= self._bits[position]

    def free(self, bits: int) -> None:
        """These retired bits are in no holder set any more."""
        self.retired &= ~bits
        self._free.extend(_positions(bits))

    def write_depth(self, matched: dict[str, int], present: int, still: int, depth: int) -> None:
        """Of the instances `present` so far only these are `still` there: the others end at this depth."""
        leaving = present & ~still
        if leaving.bit_count() <= FEW:
            for position in _positions(leaving):
                matched[self._instances[position]] = depth
            return
        if 2 * still.bit_count() <= present.bit_count():
            # The few others get their own depth later. All those that share a system prompt are then one set,
            # seen again with each request, and not a different one for each instance that holds more.
            leaving = present
        matched.update(self._all_at(leaving, depth))

    def _all_at(self, bits: int, depth: int) -> dict[str, int]:
        answer = self._remembered.get((bits, depth))
        if answer is None:
            answer = dict.fromkeys([self._instances[position] for position in _positions(bits)], depth)
            if len(self._remembered) == MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[bits, depth] = answer
        return answer


def bit_rows(sets: list[int], width: int) -> npt.NDArray[np.uint8]:
    """Bit sets as rows of `width` zeros and ones, lowest bit first."""
    row_bytes = (width + 7) // 8
    packed = b"".join([bits.to_bytes(row_bytes, "little") for bits in sets])
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(sets), row_bytes)
    return np.unpackbits(rows, axis=1, bitorder="little", count=width)


def _positions(bits: int) -> list[int]:
    if bits.bit_count() > FEW:
        return np.flatnonzero(bit_rows([bits], bits.bit_length())).tolist()
    positions: list[int] = []
    while bits:
        position = bits.bit_length() - 1
        positions.append(position)
        bits ^= 1 << position
    return positions
