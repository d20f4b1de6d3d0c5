"""Where a request may start, and what it has to leave to others there: claims, KV, long prompts, floods. Pure."""

from collections.abc import Sequence

import numpy as np

from slomax.policy.claims import Claims
from slomax.policy.classify import BATCH, INTERACTIVE, LONG_CONTEXT
from slomax.policy.entry import Entry
from slomax.policy.flood import Tenants, idle_share_kept
from slomax.policy.prospects import Prospects, prospects
from slomax.policy.shares import Work
from tokenfleet.contracts.policy import Policy
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths

HEADROOM_TOKENS = 32_000
"""Work without haste is judged as if its prompt were so much longer: the slack of those that decode is left to the
interactive prompt that may come next."""
FORESEEN_AT_MOST = 0.7
"""And as if, for as long as those decode, prompts of the other classes came on as in the last half minute, up to this
share of the time: a token each 0.1 s leaves room for only so much prefill, and batch takes what the others will not
need."""
LONG_BATCH_SHARE = 0.625
"""Of the instances: while so many have a long prompt before them, no more long ones without haste are started, until
they are late. The next long prompt that is promised something finds an instance that begins with it soon."""
NOBODY_ELSE_SHARE = 0.01
"""Of the pool's time: where the other classes' prompts took less lately, batch has all instances."""
BATCH_KV_RESERVES = 4.0
"""Times the reserve that work without haste leaves free: what interactive requests arrive with in a minute or so."""


class Room:
    """One pool's instances, as those who wait see them."""

    def __init__(self, load: LoadView, lengths: OutputLengths) -> None:
        self._load = load
        self._lengths = lengths
        self._tenants = Tenants()
        self.work = Work()
        """Started lately, by class."""
        self.claims = Claims()

    def started(self, entry: Entry, now_s: float) -> None:
        """A request begins."""
        self.work.started(entry.request_class, entry.own_prefill_s, now_s)
        self._tenants.started(entry, now_s)

    def floods(self, entry: Entry, instances: int, now_s: float) -> bool:
        """Whether its tenant takes far more than its share."""
        return self._tenants.floods(entry, instances, now_s)

    def forget_idle(self, now_s: float) -> None:
        """Drop the tenants for which nothing was started lately."""
        self._tenants.forget_idle(now_s)

    def ahead(
        self, entry: Entry, fitting: Sequence[InstanceView], now_s: float, *, others_wait: bool
    ) -> Prospects:
        """What it would meet at each instance, with what its kind has to leave to others.

        Args:
            entry: the request; whether its tenant floods is noted there.
            fitting: instances that could take it.
            now_s: engine seconds.
            others_wait: whether anybody waits: only then does anybody flood.
        """
        entry.floods = others_wait and self._tenants.floods(entry, len(fitting), now_s)
        headroom_tokens, others_per_s = 0, 0.0
        if entry.patient:
            headroom_tokens, others_per_s = HEADROOM_TOKENS, self.work.per_s_besides(BATCH, now_s)
        elif entry.floods:
            others_per_s = self._tenants.per_s_besides(entry.tenant, now_s)
        foreseen_share = min(others_per_s / len(fitting), FORESEEN_AT_MOST)
        return prospects(
            entry.tokens, fitting, self._load, self._lengths, now_s, headroom_tokens, foreseen_share
        )

    def allowed(self, entry: Entry, ahead: Prospects, policy: Policy) -> np.ndarray:
        """Where it may start, whatever the time: long prompts are limited in number, growing answers keep room."""
        free = self.claims.free_for(entry, [view.record.instance for view in ahead.instances])
        if entry.floods and ahead.idle_share <= idle_share_kept(entry.own_prefill_s, ahead.foreseen_share):
            return np.zeros_like(free)
        if entry.request_class == INTERACTIVE:
            return free
        reserve = BATCH_KV_RESERVES if entry.patient else 1.0
        kept_tokens = reserve * policy.kv_reserve_share * ahead.kv_capacity_tokens
        # A prompt that takes more than the reserve leaves may still have an instance for itself.
        allowed = free & (
            ahead.kv_free_tokens >= np.minimum(kept_tokens, ahead.kv_capacity_tokens - entry.tokens)
        )
        if entry.request_class != LONG_CONTEXT:
            return allowed
        pending = _pending_long(self._load, [view.record.instance for view in ahead.instances], policy)
        most_at_once = max(1, round(policy.long_prefills_share * len(ahead.instances)))
        if int((pending > 0).sum()) >= most_at_once:
            return allowed & (pending > 0) & (pending < policy.long_prefills_per_instance)
        return allowed & (pending < policy.long_prefills_per_instance)

    def long_batch_fits(self, instances: Sequence[InstanceView], policy: Policy, now_s: float) -> bool:
        """Whether one more long prompt without haste leaves enough instances to those who are promised something."""
        if self.work.per_s_besides(BATCH, now_s) < NOBODY_ELSE_SHARE * len(instances):
            return True
        pending = _pending_long(self._load, [view.record.instance for view in instances], policy)
        return int((pending > 0).sum()) < max(1, round(LONG_BATCH_SHARE * len(instances)))


def _pending_long(load: LoadView, names: Sequence[str], policy: Policy) -> np.ndarray:
    """By instance, how many long prompts wait for their first token there."""
    return np.array([load.pending_longer(name, policy.long_context_tokens) for name in names])
