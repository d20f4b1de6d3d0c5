"""Publishing the goodput windows of this site's ledger on the control plane."""

from faststream.nats import NatsBroker

from goodput_accountant.ledger import Ledger
from goodput_accountant.metrics import Metrics
from goodput_accountant.policy.windows import goodput_windows, last_window_end, split
from tokenfleet import subjects
from tokenfleet.clock import Clock
from tokenfleet.errors import UnavailableError

SETTLE_S = 1.0
CATCH_UP_WINDOWS = 6


class WindowPublisher:
    """Publishes each closed window once per site, whichever accountant comes first.

    After a pause the last few windows are made up for, older ones are not: this is feedback on the present,
    so a row that reaches the ledger after its window went out is in none. The ledger has the whole story.
    """

    def __init__(
        self, ledger: Ledger, broker: NatsBroker, metrics: Metrics, clock: Clock, site: str, window_s: float
    ) -> None:
        self._ledger = ledger
        self._broker = broker
        self._metrics = metrics
        self._clock = clock
        self._site = site
        self._window_ns = round(window_s * 1e9)

    async def publish(self) -> None:
        """Publish every closed window that has not been."""
        end_ns = last_window_end(self._clock.unix_ns(), self._window_ns, round(SETTLE_S * 1e9))
        oldest_ns = end_ns - CATCH_UP_WINDOWS * self._window_ns
        try:
            claim = await self._ledger.claim_ended(self._site, oldest_ns, end_ns)
        except UnavailableError:
            return
        if claim is None:
            return
        for begin_ns, over_ns in split(claim.start_ns, end_ns, self._window_ns):
            windows = goodput_windows(claim.rows, begin_ns, over_ns)
            for window in windows:
                await self._broker.publish(window, subjects.goodput(window.site, window.pool))
            self._metrics.windows_published(len(windows))
