"""What is measured of batches."""

from opentelemetry.metrics import Meter


class BatchMetrics:
    """Counters of one process."""

    def __init__(self, meter: Meter) -> None:
        self._lines = meter.create_counter("tokenfleet.ingress.batch_lines", description="By result.")
        self._put_back = meter.create_counter(
            "tokenfleet.ingress.batch_lines_put_back", description="To be tried again later, by cause."
        )

    def line(self, *, succeeded: bool) -> None:
        """A line has its result."""
        self._lines.add(1, {"tokenfleet.outcome": "completed" if succeeded else "failed"})

    def put_back(self, *, refused: bool) -> None:
        """A line is tried again: the fleet was too busy for it, or the try failed."""
        self._put_back.add(1, {"tokenfleet.reason": "refused" if refused else "failed"})
