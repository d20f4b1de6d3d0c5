"""What a site grants of a pool to other entries: its book of leases, and how full its instances may be. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleetmind.policy.backoff import LoadLimit
from fleetmind.policy.leases import VALID_S, LeaseBook, headroom_s
from fleetmind.policy.sites import Pool, SiteView
from tokenfleet.contracts.policy import Fleet
from tokenfleet.contracts.sites import Lease, LeaseAsk, LeaseGrant

MOST_PER_REQUEST_S = 4.0
"""What one request takes of the headroom at most. A longer prompt keeps its instance busy beyond the time in which anybody else
would still be served in time there: of that nothing is left to grant."""


@dataclass(slots=True)
class Granter:
    """One pool of this site.

    Args:
        started_s: when this process took over; wall seconds, as everywhere here.
    """

    started_s: float
    limit: LoadLimit = field(default_factory=LoadLimit)
    _book: LeaseBook = field(init=False)

    def __post_init__(self) -> None:
        self._book = LeaseBook(self.started_s)

    def heard(self, pool: Pool) -> None:
        """A summary of the pool arrived."""
        self.limit.load(pool.backlog_s.tolist())

    def placed(self, leases: Iterable[Lease], now_s: float) -> None:
        """A request that another entry placed here on leases arrived."""
        for lease in leases:
            self._book.spent(lease, now_s)

    def answer(self, ask: LeaseAsk, pool: Pool, view: SiteView, fleet: Fleet, now_s: float) -> LeaseGrant:
        """What an entry gets; nothing while the pool's load is not known.

        Args:
            ask: what it asks for.
            pool: of this site.
            view: where this site's own placements count.
            fleet: the policy in force.
            now_s: wall seconds.
        """
        for lease in ask.returned:
            self._book.returned(lease)
        free_s = 0.0
        if pool.told(now_s):
            free_s = headroom_s(
                view.backlog_now_s(pool, now_s).tolist(), self.limit.limit_s, fleet.reserve_share
            )
        lease_id, work_s = self._book.grant(ask.holder, ask.wanted_s, free_s, now_s) or ("", 0.0)
        return LeaseGrant(
            holder=ask.holder,
            site=pool.site,
            pool=pool.name,
            sequence=ask.sequence,
            lease_id=lease_id,
            work_s=work_s,
            valid_s=VALID_S,
            limit_s=min(self.limit.limit_s, MOST_PER_REQUEST_S),
        )
