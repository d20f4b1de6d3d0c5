"""What all requests of one ingress share, and the answers that come for them."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog
from nats.aio.msg import Msg

from ingress.auth import Concurrency
from ingress.engine_connection import Timeouts
from ingress.journal import Journal, outcome_of
from ingress.metrics import Metrics
from ingress.outbox import Outbox
from ingress.policy.fallback import least_loaded, permitted_to
from ingress.policy.happenings import FellBack, Instant
from ingress.policy.peers import PeerSites
from ingress.policy.retry_budget import RetryBudget
from ingress.policy.token_rate import TokenRates
from ingress.prompt import Prompts
from ingress.settings import IngressSettings
from ingress.tokenization.engine import EngineTokenizers
from ingress.tokenization.local import LocalTokenizer
from ingress.tokenization.segments import TokenCache
from ingress.upstream import EngineClient
from tokenfleet import subjects
from tokenfleet.bus import Delivery
from tokenfleet.bus.codec import decode
from tokenfleet.contracts.fleet import InstanceRecord, SiteRegistry
from tokenfleet.contracts.requests import EVENT_TYPES, Admitted, Queued, Refused, RequestSpec, Routed
from tokenfleet.errors import ConfigurationError, ContractError
from tokenfleet.fleet_view import FleetView
from tokenfleet.live import LivePolicy, LiveTenants, watch_fleet
from tokenfleet.service import Service

if TYPE_CHECKING:
    from ingress.driver import RequestDriver

OTHER_SITES_S = 2.5
"""How long a start waits for what other sites tell once a second."""

log = structlog.get_logger(__name__)


class Gateway:
    """The state of one ingress process."""

    def __init__(self, service: Service[IngressSettings]) -> None:
        settings = service.settings
        self.settings = settings
        self.bus = service.bus
        self.clock = service.clock
        self.observability = service.observability
        self.fleet = FleetView()
        self.peers = PeerSites()
        self.policy = LivePolicy()
        self.tenants = LiveTenants()
        self.engines = EngineClient(
            Timeouts(
                connect_s=settings.ingress_connect_timeout_s,
                first_byte_s=settings.ingress_first_byte_timeout_s,
                idle_s=settings.ingress_idle_timeout_s,
            )
        )
        self._engine_tokenizers = EngineTokenizers(
            self.engines,
            service.spawn,
            timeout_s=settings.ingress_tokenize_timeout_s,
            concurrency=settings.ingress_tokenize_concurrency,
        )
        self.prompts = Prompts(service.block_hasher(), load_tokenizers(settings), self._engine_tokenizers)
        self.journal = Journal(settings.journal_path)
        self.outbox = Outbox(self.bus, self.journal)
        self.metrics = Metrics(self.observability.meter, self.journal)
        self.concurrency = Concurrency(settings.ingress_max_requests)
        self.token_rates = TokenRates()
        self.retries = RetryBudget()
        self.in_flight: dict[str, RequestDriver] = {}
        self.at_instance: Counter[str] = Counter()
        """Requests this ingress has at each instance."""
        self.stopping = False
        self._all_heard = asyncio.Event()
        """Every other site has said what it has."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._known_pools: set[str] = set()
        self._adapters: dict[str, str] = {}
        """The model of each adapter."""

    async def start(self) -> None:
        """Follow the fleet, take answers, and settle what an earlier process left."""
        await watch_fleet(self.bus, self.settings.site, self.clock, self.fleet, on_record=self._remember)
        await self.policy.watch(self.bus)
        await self.tenants.watch(self.bus)
        if len(self.settings.fleet_sites) > 1:
            await self.bus.subscribe(
                subjects.ALL_REGISTRIES, SiteRegistry, self._other_site, codec="msgpack", ordered=True
            )
            await self._hear_other_sites()
        await self.bus.subscribe_raw(subjects.answers_to(self.settings.replica), self._on_answer)
        self.outbox.start()
        self._settle_left_over()

    async def _hear_other_sites(self) -> None:
        """Wait until each has said what it has, but not for one that is away: models only they have would be unknown."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OTHER_SITES_S):
                await self._all_heard.wait()

    def now(self) -> Instant:
        return Instant(self.clock.now_s(), self.clock.unix_ns())

    # -- requests in flight

    def enter(self, driver: "RequestDriver") -> None:
        """A request was accepted: answers for it can arrive from now on."""
        self.in_flight[driver.request_id] = driver
        self.concurrency.enter(None if driver.internal else driver.tenant)
        self.retries.request(self.clock.wall_s())
        self.metrics.in_flight.add(1)
        self._idle.clear()

    def leave(self, driver: "RequestDriver") -> None:
        """It is over."""
        del self.in_flight[driver.request_id]
        self.concurrency.leave(None if driver.internal else driver.tenant)
        self.metrics.in_flight.add(-1)
        if not self.in_flight:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> None:
        """Return when nothing is in flight, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    # -- models

    def resolve(self, name: str) -> tuple[str, str | None] | None:
        """`(model, pinned version)` of the name a client used; None when no such model was ever served here.

        An adapter is asked for by its own name, as its engines have it.

        A model whose last instance has left stays known: it is unavailable (503), not unknown (404).
        """
        models = {pool.rpartition("@")[0] for pool in self._known_pools}
        if name in models:
            return name, None
        model, version = subjects.split_model(name)
        if version is not None and subjects.pool_name(model, version) in self._known_pools:
            return model, version
        return (self._adapters[name], None) if name in self._adapters else None

    def adapter(self, name: str) -> str | None:
        """The adapter that is meant by the name a client used, if it is not a model's."""
        return name if self.resolve(name) == (self._adapters.get(name), None) else None

    def pools_of(self, model: str, version: str | None) -> list[str]:
        if version is not None:
            return [subjects.pool_name(model, version)]
        return self.fleet.pools_of_model(model)

    def ready_records(
        self,
        model: str,
        version: str | None,
        may_use: Callable[[InstanceRecord], bool] = lambda _: True,
    ) -> list[InstanceRecord]:
        """The registry records of a model's ready instances, of one pool: pools may differ in block size and tokens.

        Another site's where this one has none; only those that may be used.
        """
        now_s = self.clock.wall_s()
        for pool in self.pools_of(model, version):
            records = [view.record for view in self.fleet.ready(pool, now_s)]
            if usable := [record for record in records if may_use(record)]:
                return usable
        return self.peers.ready(model, version, now_s, may_use)

    def record_of(self, site: str, instance: str) -> InstanceRecord | None:
        """The registry's record of an instance, here or at another site."""
        if site != self.settings.site:
            return self.peers.record(site, instance, self.clock.wall_s())
        view = self.fleet.get(instance)
        return view.record if view is not None else None

    def fall_back(self, request: RequestSpec, tenant: str, excluded: tuple[str, ...]) -> FellBack:
        """The least-loaded ready instance of this site that may take the request, by this ingress's own view."""
        now_s = self.clock.wall_s()
        pools = self.pools_of(request.model, request.version)
        ready = [view for pool in pools for view in self.fleet.ready(pool, now_s)]
        permitted = permitted_to(request, self.tenants.by_name.get(tenant), ready)
        chosen = least_loaded(permitted, self.at_instance, excluded)
        if chosen is None:
            return FellBack(None)
        return FellBack(chosen.record.instance, chosen.record.pool, chosen.record.site)

    def health(self) -> dict[str, Any]:
        """What /health says besides the service's name and its connection."""
        now_s = self.clock.wall_s()
        pools = {
            pool: {"ready": len(self.fleet.ready(pool, now_s)), "known": len(self.fleet.pool(pool))}
            for pool in sorted(self.fleet.pools())
        }
        return {
            "instances": {
                "ready": sum(pool["ready"] for pool in pools.values()),
                "known": sum(pool["known"] for pool in pools.values()),
            },
            "models": self.fleet.models(),
            "sites": self.peers.counts(now_s),
            "pools": pools,
            "in_flight": self.concurrency.total,
            "journal_backlog": self.journal.backlog,
            "tokenization": {model: self._tokenization(model) for model in self.fleet.models()},
        }

    def _tokenization(self, model: str) -> dict[str, str]:
        """How the prompts of a model are tokenized now."""
        records = self.ready_records(model, None)
        if not records:
            return {}
        return {
            "chat": self.prompts.method(records, chat=True),
            "text": self.prompts.method(records, chat=False),
        }

    def _remember(self, instance: str, record: InstanceRecord | None) -> None:
        if self.settings.ingress_tokenize_concurrency:
            self._engine_tokenizers.watch(instance, record)
        if record is not None:
            self._known_pools.add(record.pool)
            self._adapters.update(dict.fromkeys(record.adapters, record.model))

    # -- messages

    async def _other_site(self, registry: SiteRegistry, _: Delivery) -> None:
        if registry.site != self.settings.site:
            self.peers.apply(registry, self.clock.wall_s())
            self._known_pools |= self.peers.pools()
            self._adapters.update(self.peers.adapters())
            if self.peers.heard() | {self.settings.site} >= set(self.settings.fleet_sites):
                self._all_heard.set()

    async def _on_answer(self, message: Msg) -> None:
        event = message.subject.split(".")[-2]
        try:
            answer = decode(message.data, EVENT_TYPES[event])
        except (ContractError, KeyError) as error:
            log.warning("answer dropped", subject=message.subject, error=str(error))
            return
        driver = self.in_flight.get(answer.request_id)
        if driver is not None and isinstance(answer, Queued | Admitted | Refused | Routed):
            driver.answers.put_nowait(answer)

    def _settle_left_over(self) -> None:
        for line in self.journal.left_over:
            ended = outcome_of(line, self.clock.unix_ns(), self.clock.time_scale)
            if line.ended is None:
                self.journal.ended(ended)
            self.outbox.put(ended)
        if self.journal.left_over:
            log.warning("requests of an earlier process settled", requests=len(self.journal.left_over))
        self.journal.left_over = []


def load_tokenizers(settings: IngressSettings) -> dict[str, LocalTokenizer]:
    """The tokenizers that the settings name, by model.

    Raises:
        ConfigurationError: one of them cannot be used.
    """
    cache = TokenCache(settings.ingress_token_cache_tokens)
    tokenizers: dict[str, LocalTokenizer] = {}
    for model, folder in settings.ingress_tokenizers.items():
        try:
            tokenizers[model] = LocalTokenizer.load(folder, cache)
        except ConfigurationError as error:
            raise ConfigurationError(f"TOKENFLEET_INGRESS_TOKENIZERS, {model}: {error}") from error
        log.info("tokenizer loaded", model=model, folder=str(folder), chats=tokenizers[model].takes_chats)
    return tokenizers
