"""What to do with a KV-event message, by its sequence number.

A publisher numbers its messages from 0. Over one connection they arrive in order, so a number that goes back
means that the publisher started anew; one that jumps means that messages were lost. Messages that a replay
has already brought arrive once more on the live connection, and are skipped.
"""

import enum


class Action(enum.Enum):
    """The four things a message can call for."""

    APPLY = enum.auto()
    SKIP = enum.auto()
    REPAIR = enum.auto()
    """Some before it are missing: replay from `next_sequence`."""
    RESTART = enum.auto()
    """Another process publishes now: forget everything and replay from the beginning."""


class SequenceTracker:
    """Follows one publisher."""

    def __init__(self) -> None:
        self.next_sequence = 0
        """The number of the first message not yet applied."""
        self.from_beginning = True
        """Whether every message before `next_sequence` was applied."""
        self._live = -1

    def live(self, sequence: int) -> Action:
        """Judge a message of the live connection; after APPLY the caller applies it."""
        previous, self._live = self._live, sequence
        if sequence < previous:
            return Action.RESTART
        if sequence < self.next_sequence:
            return Action.SKIP
        if sequence > self.next_sequence:
            return Action.REPAIR
        self.next_sequence += 1
        return Action.APPLY

    def replayed(self, sequence: int) -> bool:
        """Whether to apply a replayed message: it is the next one, or the first of a full replay.

        An engine remembers only so many messages, so a full replay may begin late.
        """
        if sequence < self.next_sequence or (sequence > self.next_sequence > 0):
            return False
        if sequence > self.next_sequence:
            self.from_beginning = False
        self.next_sequence = sequence + 1
        return True

    def skip_to(self, sequence: int) -> None:
        """Give up what is missing before `sequence`, which becomes the next."""
        self.from_beginning = self.from_beginning and sequence == self.next_sequence
        self.next_sequence = sequence

    def take(self, sequence: int) -> None:
        """The caller applies this message, whatever the number before it."""
        self.skip_to(sequence)
        self.next_sequence += 1

    def restart(self) -> None:
        """Expect a replay from the beginning; the live connection goes on."""
        self.next_sequence = 0
        self.from_beginning = True

    def reconnect(self) -> None:
        """Expect a replay and a live connection that both begin anew."""
        self.restart()
        self._live = -1
