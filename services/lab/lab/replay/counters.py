"""What a replay has done so far, for the progress bar and the client's own figures."""

from collections import Counter
from typing import Any

import msgspec

from lab.replay.client import Answer


class Counters(msgspec.Struct):
    """Counts over the run; `answers` holds the latest answer of each request by its index."""

    offered: int
    sent: int = 0
    refused_connections: int = 0
    """Connections refused and tried again; the ingress had not seen those requests."""
    resent: int = 0
    """Requests sent a second time because the ledger showed they had never been accepted."""
    rows: int = 0
    """Ledger rows seen so far."""
    answers: dict[int, Answer] = msgspec.field(default_factory=dict[int, Answer])

    def note_refused(self) -> None:
        """Count one refused connection."""
        self.refused_connections += 1

    @property
    def done(self) -> int:
        return len(self.answers)

    @property
    def in_flight(self) -> int:
        return self.sent - self.done

    @property
    def rejected(self) -> int:
        """Requests answered 429: refused early, as admission control does."""
        return sum(1 for answer in self.answers.values() if answer.status == 429)

    @property
    def errors(self) -> int:
        """Requests neither rejected nor answered whole with status 200."""
        return sum(1 for answer in self.answers.values() if not answer.good) - self.rejected


def client_json(counters: Counters) -> dict[str, Any]:
    """The client's side, to be checked against the ledger's."""
    answers = counters.answers.values()
    return {
        "statuses": dict(sorted(Counter(str(a.status) for a in answers if a.status is not None).items())),
        "endings": dict(sorted(Counter(a.ending for a in answers).items())),
        "refused_connections": counters.refused_connections,
        "resent": counters.resent,
    }
