"""Places the requests that enter at this site, and learns how those fare that went elsewhere."""

from dataclasses import dataclass

from fleetmind.asking import Asking
from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.placement import Placement, Placer
from fleetmind.policy.weighing import weighed
from tokenfleet import subjects
from tokenfleet.blocks import unpack
from tokenfleet.bus import Delivery
from tokenfleet.contracts.control import Adjusted
from tokenfleet.contracts.requests import Placed, Refused, Submitted, next_event
from tokenfleet.contracts.sites import Fared, LeaseAsk, LeaseGrant
from tokenfleet.live import LivePolicy, LiveTenants
from tokenfleet.service import Service
from tokenfleet.settings import Settings

REMEMBERED_S = 1200.0
"""How long a placement is remembered whose request never ended, in wall seconds."""
ROUND_TRIP_WEIGHT = 0.2
"""Of one measured round trip that is longer than those before; a shorter one counts fully."""


@dataclass(slots=True)
class _Known:
    """A request that was placed from here."""

    attempt: int
    placement: Placement
    at_s: float
    silent: tuple[str, ...] = ()
    """Sites that did not answer it."""


class Entry:
    """One replica's requests."""

    def __init__(
        self,
        service: Service[Settings],
        placer: Placer,
        policy: LivePolicy,
        tenants: LiveTenants,
        asking: Asking,
    ) -> None:
        self._service = service
        self._bus = service.bus
        self._clock = service.clock
        self._site = service.settings.site
        self._holder = service.settings.replica
        self._placer = placer
        self._policy = policy
        self._tenants = tenants
        self._asking = asking
        self._known: dict[str, _Known] = {}

    async def start(self) -> None:
        bus, site = self._bus, self._site
        meter = self._service.observability.meter
        self._placements = meter.create_counter(
            "tokenfleet.fleetmind.placements", description="Requests placed, by site and reason."
        )
        self._refusals = meter.create_counter(
            "tokenfleet.fleetmind.refusals", description="Requests that no site may or can take, by reason."
        )
        await bus.subscribe(subjects.fared(site), Fared, self._fared, codec="msgpack", ordered=True)
        await bus.subscribe(
            subjects.lease_grant(site, self._holder), LeaseGrant, self._granted, codec="msgpack", ordered=True
        )
        await bus.subscribe(
            subjects.request_events(site, "submitted"), Submitted, self._submitted, queue="fleetmind"
        )
        self._service.every(60.0, self._forget)

    def health(self) -> dict[str, object]:
        """Round trips, and what is held back from other sites."""
        now_s = self._clock.wall_s()
        return {
            "round_trips_ms": {
                site: round(1e3 * seconds, 1) for site, seconds in self._placer.measured_s.items()
            },
            "diverted_share": {
                f"{site}/{pool}": round(backoff.share(now_s), 2)
                for (site, pool), backoff in self._placer.backoffs.items()
            },
            "rolled_back": {
                model: versions.rolled_back()
                for model, versions in self._placer.versions.items()
                if versions.rolled_back()
            },
        }

    async def ask(self) -> None:
        """Ask every other site for leases of its pools; the answers also tell how far away it is."""
        now_s = self._clock.wall_s()
        for pool in self._placer.sites.elsewhere(self._site):
            ask = LeaseAsk(
                holder=self._holder,
                site=self._site,
                pool=pool.name,
                sequence=self._placer.wallet.ask(pool.site, pool.name, now_s),
                wanted_s=self._placer.wanted(pool.site, pool.name),
                returned=self._placer.wallet.give_back(pool.site, pool.name, now_s),
            )
            await self._bus.publish(subjects.lease_ask(pool.site), ask, codec="msgpack")

    async def _granted(self, grant: LeaseGrant, _: Delivery) -> None:
        round_trip_s = self._placer.wallet.receive(grant, self._clock.wall_s())
        if round_trip_s is None:
            return
        known_s = self._placer.measured_s.get(grant.site, round_trip_s)
        # What is longer may have waited in a queue; the network itself is the shortest of them.
        longer_s = max(0.0, round_trip_s - known_s)
        self._placer.measured_s[grant.site] = min(known_s, round_trip_s) + ROUND_TRIP_WEIGHT * longer_s

    # -- requests

    async def _submitted(self, event: Submitted, delivery: Delivery) -> None:
        if not len(self._placer.sites):
            return  # no roll-up has arrived yet: silence makes ingress ask again, a refusal would be wrong
        with self._service.observability.span(
            "fleetmind.place", delivery.headers, {"tokenfleet.request_id": event.request_id}
        ) as headers:
            choice = self._place(event)
            if isinstance(choice, Placement):
                self._placements.add(1, {"tokenfleet.site": choice.site, "tokenfleet.reason": choice.reason})
                subject = subjects.request(choice.site, choice.pool, "placed")
                await self._bus.publish(subject, self._placed(event, choice), headers=headers)
            else:
                self._refusals.add(1, {"tokenfleet.reason": choice.reason})
                subject = subjects.request(self._site, event.pool, "refused", event.request.ingress)
                await self._bus.publish(subject, self._refused(event, choice), headers=headers)

    def _place(self, event: Submitted) -> Placement | NoPlace:
        now_s, known = self._clock.wall_s(), self._known.get(event.request_id)
        silent: tuple[str, ...] = ()
        if known is not None and known.attempt == event.attempt:
            silent = known.silent
            placed = known.placement
            if placed.site != self._site and placed.site not in silent:
                # Ingress asks again: nobody there has answered.
                silent = (*silent, placed.site)
                self._placer.backoffs[placed.site, placed.pool].bad(now_s)
        tenant = self._tenants.by_name.get(event.tenant)
        choice = self._placer.place(
            event.request,
            event.request_id,
            tenant,
            unpack(event.request.blocks),
            self._policy.current.fleet,
            now_s,
            avoid=silent,
        )
        self._asking.decided(event, tenant, choice)
        if isinstance(choice, Placement):
            self._known[event.request_id] = _Known(event.attempt, choice, now_s, silent)
        return choice

    async def _fared(self, fared: Fared, _: Delivery) -> None:
        now_s = self._clock.wall_s()
        if fared.site != self._site:
            backoff = self._placer.backoffs[fared.site, fared.pool]
            known = self._known.get(fared.request_id)
            if fared.happened in ("refused", "failed"):
                backoff.bad(now_s)
            elif fared.happened == "first_token" and fared.ttft_s is not None and known is not None:
                predicted_s = known.placement.predicted_ttft_s
                if predicted_s is not None:
                    backoff.first_token(fared.ttft_s, predicted_s, now_s)
        if fared.happened == "first_token":
            return
        self._known.pop(fared.request_id, None)
        if fared.happened != "refused":
            await self._count_version(fared)

    async def _count_version(self, fared: Fared) -> None:
        model, version = subjects.split_model(fared.pool)
        rollout = self._policy.current.fleet.rollouts.get(model)
        if rollout is None or version is None:
            return
        failed = fared.happened == "failed"
        why = self._placer.versions[model].ended(version, failed=failed, rollout=rollout)
        if why is None:
            return
        self._service.log.error(
            "version rolled back until its weight is changed", model=model, version=version, reason=why
        )
        broker = await self._service.broker()
        message = Adjusted(
            time_ns=self._clock.unix_ns(),
            site=self._site,
            pool=fared.pool,
            knob=f"fleet.rollouts.{model}.weights.{version}",
            before=rollout.weights.get(version, 0.0),
            after=0.0,
            reason=why,
        )
        await broker.publish(message, subjects.control(self._site, fared.pool))

    async def _forget(self) -> None:
        before_s = self._clock.wall_s() - REMEMBERED_S
        self._known = {key: known for key, known in self._known.items() if known.at_s >= before_s}

    def _placed(self, event: Submitted, choice: Placement) -> Placed:
        shown, out = weighed(choice.estimates, choice.out)
        return next_event(
            Placed,
            "placed",
            event,
            site=choice.site,
            pool=choice.pool,
            time_ns=self._clock.unix_ns(),
            request=event.request,
            reason=choice.reason,
            leases=choice.leases,
            weighed=shown,
            out=out,
        )

    def _refused(self, event: Submitted, choice: NoPlace) -> Refused:
        shown, out = weighed((), choice.out)
        return next_event(
            Refused,
            "refused",
            event,
            site=self._site,
            time_ns=self._clock.unix_ns(),
            status=choice.status,
            reason=choice.reason,
            message=choice.message,
            retry_after_s=choice.retry_after_s,
            weighed=shown,
            out=out,
        )
