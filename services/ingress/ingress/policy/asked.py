"""What a client asks for besides its answer: a tier, a class, promises, and how long it would queue. Pure.

Headers are those that clients of llm-d and of the Gateway API inference extension send, by their present names and
their older ones; the first that is set counts. Times are engine seconds.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tokenfleet.contracts.policy import Tier
from tokenfleet.contracts.requests import Objective

TTFT = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
REGIONS = ("x-tokenfleet-regions",)
"""Regions that a request may run in, separated by commas."""
QUEUE_TTL_MS = ("x-queue-ttl-ms",)
QUEUE_TTL = ("x-llm-d-inference-ttl",)
"""A duration as Go writes it; see https://github.com/llm-d/llm-d-router/pull/2649."""

SERVICE_TIERS = ("auto", "default", "priority", "flex")
ANYBODYS_CLASS = "batch"
LONGEST_S = 30 * 86_400.0

_ORDER: tuple[Tier, ...] = ("flex", "default", "priority")
_RANKS: dict[str, int] = {tier: rank for rank, tier in enumerate(_ORDER)}
_FAIRNESS_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")
_REGION = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MILLISECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_GO_DURATION = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{0,9})?(?:ns|us|µs|ms|s|m|h))+")
_GO_PART = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class UnacceptableError(ValueError):
    """A client asked for something that there is not; `name` is the header or field at fault."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}.")
        self.name = name


@dataclass(frozen=True, slots=True)
class Asked:
    """What deciders are told; the deciders bound it by the tenant's and the class's policy."""

    service_tier: Tier = "default"
    task: str | None = None
    objective: Objective | None = None
    fairness_id: str | None = None
    queue_ttl_s: float | None = None
    regions: tuple[str, ...] | None = None
    """Where it may run; can only narrow what its tenant may use. None: nothing was said."""


def read(
    headers: Mapping[str, str], service_tier: str | None, tenant_tier: Tier, classes: Collection[str]
) -> Asked:
    """What a request asks for.

    Args:
        headers: of the request; looked up in lower case.
        service_tier: of its body.
        tenant_tier: the highest that its tenant may have.
        classes: those that the policy has objectives for.

    Raises:
        UnacceptableError: a value that means nothing here.
    """
    tier = tier_in_force(service_tier, tenant_tier)
    task = _class(headers, classes)
    if tier == "flex" and task != ANYBODYS_CLASS:
        # Flex is batch: naming a class does not lead out of it.
        task = None
    objective = Objective(ttft_s=_milliseconds(headers, TTFT), tpot_s=_milliseconds(headers, TPOT))
    return Asked(
        tier,
        task,
        objective if objective.declared else None,
        _fairness_id(headers),
        _ttl(headers),
        _regions(headers),
    )


def tier_in_force(asked: str | None, tenant_tier: Tier) -> Tier:
    """The tier a request has: what was asked, at most its tenant's. Nothing and `auto` ask for `default`.

    Raises:
        UnacceptableError: there is no such tier.
    """
    if asked is not None and asked not in SERVICE_TIERS:
        raise UnacceptableError("service_tier", f"must be one of {', '.join(SERVICE_TIERS)}")
    wanted = _RANKS.get(asked or "default", _RANKS["default"])
    return _ORDER[min(wanted, _RANKS[tenant_tier])]


def go_duration_s(text: str) -> float | None:
    """Seconds of a positive duration such as `1500ms` or `1m30s`; None when it is not one."""
    if not _GO_DURATION.fullmatch(text):
        return None
    return math.fsum(float(number) * _UNITS_S[unit] for number, unit in _GO_PART.findall(text))


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    """`(name, value)` of the first of these headers that says anything."""
    for name in names:
        if value := headers.get(name, "").strip():
            return name, value
    return None


def _milliseconds(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    given = _first(headers, names)
    if given is None:
        return None
    name, value = given
    seconds = float(value) / 1e3 if _MILLISECONDS.fullmatch(value) else 0.0
    if not 0.0 < seconds <= LONGEST_S:
        raise UnacceptableError(name, "must be a number of milliseconds above 0, at most 30 days")
    return seconds


def _ttl(headers: Mapping[str, str]) -> float | None:
    milliseconds_s = _milliseconds(headers, QUEUE_TTL_MS)
    given = _first(headers, QUEUE_TTL)
    if given is None:
        return milliseconds_s
    name, value = given
    seconds = go_duration_s(value)
    if seconds is None or not 0.0 < seconds <= LONGEST_S:
        raise UnacceptableError(
            name, "must be a duration above 0 such as 1500ms, 2s or 1m30s, at most 30 days"
        )
    # Each can only shorten the wait.
    return seconds if milliseconds_s is None else min(seconds, milliseconds_s)


def _class(headers: Mapping[str, str], classes: Collection[str]) -> str | None:
    given = _first(headers, OBJECTIVE)
    if given is None:
        return None
    name, value = given
    if value != ANYBODYS_CLASS and value not in classes:
        known = ", ".join(sorted({*classes, ANYBODYS_CLASS}))
        raise UnacceptableError(name, f"there is no such objective. Known: {known}")
    return value


def _regions(headers: Mapping[str, str]) -> tuple[str, ...] | None:
    name = REGIONS[0]
    if name not in headers:
        return None
    # A header that names nothing is a mistake, and must not be read as "anywhere".
    regions = tuple(one.strip() for one in headers[name].split(","))
    if not all(_REGION.fullmatch(one) for one in regions):
        raise UnacceptableError(name, "must be names of regions, separated by commas")
    return regions


def _fairness_id(headers: Mapping[str, str]) -> str | None:
    given = _first(headers, FAIRNESS_ID)
    if given is None:
        return None
    name, value = given
    if not _FAIRNESS_ID.fullmatch(value):
        raise UnacceptableError(name, "must be 1 to 128 letters, digits or any of . _ : / @ + = -")
    return value
