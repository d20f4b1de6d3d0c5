"""Every NATS subject, stream and bucket, defined once.

Layout (`*` and `>` as NATS has them)::

    tf.v1.<site>.request.<pool>.<event>[.<ingress>]    a request's life (JSON)
    tf.v1.<site>.node.<instance>.state|kv              telemetry (MessagePack)
    tf.v1.<site>.node.<instance>.snapshot              request/reply: all cached blocks of an instance
    tf.v1.<site>.registry                              its instances, for other sites' ingresses (MessagePack)
    tf.v1.<site>.capacity.<pool>                       roll-up, once a second
    tf.v1.<site>.summary.<pool>                        load and cached prefixes for other sites, once a second (MessagePack)
    tf.v1.<site>.load.<pool>                           the load alone, more often, for the site itself (MessagePack)
    tf.v1.<site>.waiting.<pool>                        what SLOMax holds, for the site itself (MessagePack)
    tf.v1.<site>.fared                                 how requests that entered here fare (MessagePack)
    tf.v1.<site>.lease.ask                             an entry asks the site for capacity (MessagePack)
    tf.v1.<site>.lease.grant.<holder>                  what a site, any, grants to an entry here (MessagePack)
    tf.v1.<site>.history.<pool>                        the same, sampled, kept in the FLEET stream
    tf.v1.<site>.situation                             instances, policy and tenants; kept in the FLEET stream
    tf.v1.<site>.goodput.<pool>                        goodput windows
    tf.v1.<site>.control.<pool>                        what SLOMax or FleetMind changed by itself, and why; kept in FLEET
    tf.v1.<site>.ledger.report|rows|lookup             request/reply: a report; its rows; which requests bear an id
    tf.v1.<site>.dead_letter                           events that the ledger cannot book, and why; kept in DEAD_LETTERS
    tf.v1.<site>.asked                                 how much work entered there, once a minute; kept in FLEET
    tf.v1.<site>.plan                                  replicas that each pool should have, and why, as planned there
    tf.v1.<site>.planned                               the same, whenever it changes; kept in FLEET

Names that users choose (models, versions, sites, instances) go through `token`, which is reversible.
"""

import re

PREFIX = "tf.v1"

STREAM_REQUESTS = "REQUESTS"
STREAM_FLEET = "FLEET"
STREAM_DEAD_LETTERS = "DEAD_LETTERS"

BUCKET_INSTANCES = "instances"
BUCKET_LEASES = "leases"
BUCKET_TENANTS = "tenants"
BUCKET_POLICY = "policy"
BUCKET_LATENCY = "latency"
"""What TokenPilot has learned of each pool."""

POLICY_KEY = "live"

OUTCOMES = ("completed", "rejected", "timed_out", "cancelled", "failed")
"""How a request ends, as its ingress says."""
LOST = "lost"
"""How a request ended of which its ingress never said so."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def token(name: str) -> str:
    """A name as one subject token or KV key: unsafe bytes become `=XX`. Reversed by `name_of`."""
    if not name:
        raise ValueError("an empty name cannot be a subject token")
    return _UNSAFE.sub(lambda m: "".join(f"={byte:02X}" for byte in m.group().encode()), name)


def name_of(subject_token: str) -> str:
    """The name that `token` encoded."""
    pieces = re.split(r"((?:=[0-9A-F]{2})+)", subject_token)
    return "".join(
        bytes.fromhex(piece.replace("=", "")).decode() if piece.startswith("=") else piece for piece in pieces
    )


def request(site: str, pool: str, event: str, ingress: str | None = None) -> str:
    """Where one event of a request's life is published; answers end in the ingress they are for."""
    subject = f"{PREFIX}.{token(site)}.request.{token(pool)}.{event}"
    return f"{subject}.{token(ingress)}" if ingress else subject


def request_events(site: str, event: str, *, answer: bool = False) -> str:
    """Filter: one kind of event of every pool of a site (`answer`: those addressed to an ingress)."""
    return f"{PREFIX}.{token(site)}.request.*.{event}" + (".*" if answer else "")


def answers_to(ingress: str) -> str:
    """Filter: every answer addressed to one ingress, from any site."""
    return f"{PREFIX}.*.request.*.*.{token(ingress)}"


def node(site: str, instance: str, kind: str) -> str:
    """Telemetry of one instance; `kind` is state, kv or snapshot."""
    return f"{PREFIX}.{token(site)}.node.{token(instance)}.{kind}"


def nodes(site: str, kind: str) -> str:
    """Filter: one kind of telemetry of every instance of a site."""
    return f"{PREFIX}.{token(site)}.node.*.{kind}"


def registry(site: str) -> str:
    """Where a site tells the others which instances it has."""
    return f"{PREFIX}.{token(site)}.registry"


def capacity(site: str, pool: str) -> str:
    return f"{PREFIX}.{token(site)}.capacity.{token(pool)}"


def summary(site: str, pool: str) -> str:
    """What a pool is busy with and has cached, for all sites."""
    return f"{PREFIX}.{token(site)}.summary.{token(pool)}"


def load(site: str, pool: str) -> str:
    """What a pool is busy with, for its own site only: nobody else subscribes, so it stays there."""
    return f"{PREFIX}.{token(site)}.load.{token(pool)}"


def loads(site: str) -> str:
    """Filter: the loads of every pool of a site."""
    return f"{PREFIX}.{token(site)}.load.*"


def waiting(site: str, pool: str) -> str:
    """Where SLOMax says what it holds."""
    return f"{PREFIX}.{token(site)}.waiting.{token(pool)}"


def waitings(site: str) -> str:
    """Filter: what SLOMax holds for every pool of a site."""
    return f"{PREFIX}.{token(site)}.waiting.*"


def fared(site: str) -> str:
    """Where ingresses tell their own FleetMind how requests fare."""
    return f"{PREFIX}.{token(site)}.fared"


def lease_ask(site: str) -> str:
    """Where a site is asked for capacity."""
    return f"{PREFIX}.{token(site)}.lease.ask"


def lease_grant(site: str, holder: str) -> str:
    """Where an entry hears what it was granted."""
    return f"{PREFIX}.{token(site)}.lease.grant.{token(holder)}"


def history(site: str, pool: str) -> str:
    return f"{PREFIX}.{token(site)}.history.{token(pool)}"


def situation(site: str) -> str:
    """Where the collector says which instances there are, under which policy and for which tenants."""
    return f"{PREFIX}.{token(site)}.situation"


def goodput(site: str, pool: str) -> str:
    return f"{PREFIX}.{token(site)}.goodput.{token(pool)}"


def goodputs(site: str) -> str:
    """Filter: goodput windows of every pool of a site."""
    return f"{PREFIX}.{token(site)}.goodput.*"


def control(site: str, pool: str) -> str:
    """Where SLOMax says what its feedback changed, and FleetMind which version it rolled back."""
    return f"{PREFIX}.{token(site)}.control.{token(pool)}"


def asked(site: str) -> str:
    """Where FleetMind says how much work requests asked for that entered there."""
    return f"{PREFIX}.{token(site)}.asked"


def plan(site: str) -> str:
    """Where the FleetMind that plans says, again and again, how many replicas each pool should have."""
    return f"{PREFIX}.{token(site)}.plan"


def planned(site: str) -> str:
    """The same when it has changed, for the record."""
    return f"{PREFIX}.{token(site)}.planned"


def ledger_report(site: str) -> str:
    return f"{PREFIX}.{token(site)}.ledger.report"


def ledger_rows(site: str) -> str:
    return f"{PREFIX}.{token(site)}.ledger.rows"


def ledger_lookup(site: str) -> str:
    return f"{PREFIX}.{token(site)}.ledger.lookup"


def dead_letter(site: str) -> str:
    return f"{PREFIX}.{token(site)}.dead_letter"


ALL_ASKED = f"{PREFIX}.*.asked"
ALL_PLANS = f"{PREFIX}.*.plan"
ALL_REGISTRIES = f"{PREFIX}.*.registry"
ALL_CAPACITY = f"{PREFIX}.*.capacity.*"
ALL_SUMMARIES = f"{PREFIX}.*.summary.*"
ALL_GOODPUT = f"{PREFIX}.*.goodput.*"

ALL_CONTROL = f"{PREFIX}.*.control.*"
ALL_SITUATIONS = f"{PREFIX}.*.situation"

ALL_SUBMITTED = f"{PREFIX}.*.request.*.submitted"

ALL_REQUESTS = f"{PREFIX}.*.request.>"
ALL_DEAD_LETTERS = f"{PREFIX}.*.dead_letter"
TERMINAL_SUBJECTS = tuple(f"{PREFIX}.*.request.*.{outcome}" for outcome in (*OUTCOMES, LOST))


def requests_stream(site: str) -> tuple[str, ...]:
    """What a site's REQUESTS stream takes: its own subjects only, since every site hears every other's."""
    return (f"{PREFIX}.{token(site)}.request.>",)


def fleet_stream(site: str) -> tuple[str, ...]:
    """What a site's FLEET stream takes."""
    own = f"{PREFIX}.{token(site)}"
    return (f"{own}.history.*", f"{own}.control.*", f"{own}.situation", f"{own}.asked", f"{own}.planned")


def domain(site: str) -> str:
    """The JetStream domain of a site's NATS."""
    return token(site)


def domain_api(site: str) -> str:
    """Under which subject another site's JetStream is reached."""
    return f"$JS.{domain(site)}.API"


def instance_key(site: str, instance: str) -> str:
    return f"{token(site)}.{token(instance)}"


def latency_key(site: str, pool: str) -> str:
    return f"{token(site)}.{token(pool)}"


def lease_key(service: str, site: str, pool: str) -> str:
    return f"{token(service)}.{token(site)}.{token(pool)}"


def pool_name(model: str, version: str) -> str:
    """A pool's name: one model at one version. `model@version` is also how a client pins a version."""
    return f"{model}@{version}"


def split_model(name: str) -> tuple[str, str | None]:
    """`(model, version)` of what a client asked for; version is None unless pinned as `model@version`."""
    model, _, version = name.rpartition("@")
    return (model, version) if model else (version, None)
