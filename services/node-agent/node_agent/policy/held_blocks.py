"""The blocks held in one kind of memory, and how that changed since somebody last asked."""

from collections import Counter


class HeldBlocks:
    """Counts holders by block; only the first and the last of a block make a difference."""

    def __init__(self) -> None:
        self._holders: Counter[bytes] = Counter()
        self._held_before: dict[bytes, bool] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def change(self, own: bytes, held: bool, holds: bool) -> None:
        """One holder's part went from `held` to `holds`."""
        if held == holds:
            return
        self._held_before.setdefault(own, own in self._holders)
        self._holders[own] += 1 if holds else -1
        if not self._holders[own]:
            del self._holders[own]

    def changes(self) -> tuple[list[bytes], list[bytes]]:
        """What is held now and was not at the last call, and the reverse."""
        before = self._held_before
        self._held_before = {}
        stored = [own for own, held in before.items() if not held and own in self._holders]
        removed = [own for own, held in before.items() if held and own not in self._holders]
        return stored, removed

    def packed(self) -> bytes:
        """Every block held."""
        return b"".join(self._holders)

    def clear(self) -> None:
        """Nothing is held, and nothing changed: the one who asks must be told of the clearing."""
        self._holders.clear()
        self._held_before.clear()
