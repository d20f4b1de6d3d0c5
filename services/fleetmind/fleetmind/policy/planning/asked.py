"""How much work requests ask for, counted where they enter. Pure.

    work = prefill of what is not cached + tokens of the answer * step / ANSWERS_TOGETHER

in seconds of one instance. Prefills run one after the other, answers are decoded many at a time: each is taken to cause its share
of the steps of an instance that is well used, not of one that happens to be idle.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleetmind.policy.eligibility import NoPlace
from fleetmind.policy.placement import Placement
from fleetmind.policy.sites import Pool
from tokenfleet.contracts.control import GoodputWindow
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec, Submitted
from tokenfleet.contracts.sites import AskedOf
from tokenfleet.load.summary import pool_load
from tokenfleet.residency import refusal

ANSWERS_TOGETHER = 32
"""A quarter of what the reference engine decodes at most, where a step takes hardly longer than with one."""
REFERENCE_PREFILL_S_PER_TOKEN = 71.4e-6
"""Of the profile llama70b-tp4-h100, while no engine of the model tells its own."""
REFERENCE_STEP_S = 0.015
"""Likewise."""
FIRST_ANSWER_TOKENS = 256.0
"""Until the ledger has told how long answers are."""
REMEMBERED = 0.95
"""Of the answers seen before, with each window of the ledger."""
AGAIN_S = 0.9
"""Ingress asks again after a second of silence: so much older than others of its ingress is no first question."""
CREEP = 0.01
"""By how much of the difference the youngest age of an ingress follows, for clocks that drift or are set."""
WANT_OF_ROOM = (429, 503)
"""Refusals of what more replicas would have served."""

Key = tuple[str, tuple[str, ...] | None]
"""A model, and where its requests may run (None: everywhere)."""


@dataclass(slots=True)
class AskedWork:
    """What one FleetMind replica was asked to place since it was last told."""

    _work_s: dict[Key, float] = field(default_factory=dict[Key, float])
    _answers: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """By model: tokens and number, fading."""
    _youngest_s: dict[str, float] = field(default_factory=dict[str, float])
    """By ingress: the age of a question when it arrives, clocks' difference included."""

    def answered(self, model: str, window: GoodputWindow) -> None:
        """The ledger told of requests of a model that are over."""
        tokens, count = self._answers.get(model, (0.0, 0.0))
        self._answers[model] = (
            REMEMBERED * tokens + window.output_tokens,
            REMEMBERED * count + window.completed,
        )

    def first_asked(self, event: Submitted, unix_s: float) -> bool:
        """Whether a request is asked for the first time: neither a retry nor a question asked again, of another replica
        perhaps."""
        age_s = unix_s - event.time_ns / 1e9
        ingress = event.request.ingress
        youngest_s = self._youngest_s.get(ingress, age_s)
        self._youngest_s[ingress] = min(age_s, youngest_s + CREEP * (age_s - youngest_s))
        return event.attempt == 1 and age_s - youngest_s < AGAIN_S

    def asked(
        self,
        request: RequestSpec,
        tenant: Tenant | None,
        pools: Iterable[Pool],
        choice: Placement | NoPlace,
    ) -> None:
        """A request was placed, or refused; one that nobody could ever have served does not count.

        Args:
            request: asked for the first time.
            tenant: its record; None when unknown: it may run at its entry only.
            pools: of its model, all sites.
            choice: what became of it here.
        """
        if isinstance(choice, NoPlace) and choice.status not in WANT_OF_ROOM:
            return
        pools = list(pools)
        key = request.model, permitted_sites(request, tenant, pools)
        self._work_s[key] = self._work_s.get(key, 0.0) + self._work_of(request, pools, choice)

    def take(self, seconds: float) -> tuple[AskedOf, ...]:
        """What was asked in so many engine seconds, and begin anew. What was asked once is told of ever after."""
        told = tuple(
            AskedOf(model=model, sites=sites, work=work_s / seconds)
            for (model, sites), work_s in self._work_s.items()
        )
        self._work_s = dict.fromkeys(self._work_s, 0.0)
        return told

    def _work_of(self, request: RequestSpec, pools: Iterable[Pool], choice: Placement | NoPlace) -> float:
        prefill_s = request.input_tokens * REFERENCE_PREFILL_S_PER_TOKEN
        if isinstance(choice, Placement) and choice.estimates:
            prefill_s = choice.work_s
        loads = [pool_load(pool.columns) for pool in pools if pool.columns is not None and pool.columns.size]
        steps_s = [float(load.step_s.mean()) for load in loads]
        step_s = sum(steps_s) / len(steps_s) if steps_s else REFERENCE_STEP_S
        tokens, count = self._answers.get(request.model, (0.0, 0.0))
        answer = min(request.max_output_tokens, tokens / count if count else FIRST_ANSWER_TOKENS)
        return prefill_s + answer * step_s / ANSWERS_TOGETHER


def permitted_sites(
    request: RequestSpec, tenant: Tenant | None, pools: Iterable[Pool]
) -> tuple[str, ...] | None:
    """Where a request may run of the sites that have its model, by law alone; None: everywhere."""
    if tenant is None:
        return (request.entry_site,)
    bounds = (request.sites, request.regions, tenant.sites, tenant.regions)
    if all(bound is None for bound in bounds):
        return None
    regions = {pool.site: pool.capacity.region for pool in pools}
    return tuple(
        sorted(site for site, region in regions.items() if refusal(request, tenant, site, region) is None)
    )
