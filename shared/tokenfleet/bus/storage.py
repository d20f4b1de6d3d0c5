"""What JetStream keeps at a site, and for how long.

Every site has a JetStream domain of its own, whose streams take that site's subjects only. The fleet's home site
sources the other sites' streams into its own, so that the ledger and whoever reads events there see all of the fleet;
the other sites mirror the buckets that are written at home, and read on when they are cut off.
"""

from collections.abc import Sequence

from nats.js.api import (
    DiscardPolicy,
    ExternalStream,
    KeyValueConfig,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
)

from tokenfleet import subjects

DAY_S = 24 * 3600.0

BUCKETS = {
    subjects.BUCKET_INSTANCES: KeyValueConfig(bucket=subjects.BUCKET_INSTANCES, ttl=10.0),
    subjects.BUCKET_LEASES: KeyValueConfig(bucket=subjects.BUCKET_LEASES, ttl=60.0),
    subjects.BUCKET_TENANTS: KeyValueConfig(bucket=subjects.BUCKET_TENANTS),
    subjects.BUCKET_POLICY: KeyValueConfig(bucket=subjects.BUCKET_POLICY),
    subjects.BUCKET_LATENCY: KeyValueConfig(bucket=subjects.BUCKET_LATENCY),
}
KEPT_AT_HOME = frozenset({subjects.BUCKET_TENANTS, subjects.BUCKET_POLICY})
"""Buckets that the whole fleet shares."""


def streams(site: str, sites: Sequence[str]) -> tuple[StreamConfig, ...]:
    """The streams of a site; `sites` are the fleet's, its home first."""
    others = [other for other in sites if other != site] if site == sites[0] else []
    return (
        StreamConfig(
            name=subjects.STREAM_REQUESTS,
            subjects=list(subjects.requests_stream(site)),
            sources=_sources(subjects.STREAM_REQUESTS, others),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=7 * DAY_S,
            duplicate_window=120.0,
        ),
        StreamConfig(
            name=subjects.STREAM_FLEET,
            subjects=list(subjects.fleet_stream(site)),
            sources=_sources(subjects.STREAM_FLEET, others),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=30 * DAY_S,
            max_bytes=1 << 30,
        ),
        StreamConfig(
            name=subjects.STREAM_DEAD_LETTERS,
            subjects=[subjects.dead_letter(site)],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            discard=DiscardPolicy.OLD,
            max_age=30 * DAY_S,
            max_bytes=256 << 20,
            # As long as an event may take to be delivered again after its accountant died.
            duplicate_window=3600.0,
        ),
    )


def _sources(stream: str, others: Sequence[str]) -> list[StreamSource] | None:
    return [
        StreamSource(
            name=stream,
            filter_subject=f"{subjects.PREFIX}.{subjects.token(other)}.>",
            external=ExternalStream(api=subjects.domain_api(other)),
        )
        for other in others
    ] or None


def mirror(bucket: str, home: str) -> StreamConfig:
    """A site's copy of a bucket that is written at home; what arrives is said on the bucket's own subjects."""
    own = f"$KV.{bucket}.>"
    return StreamConfig(
        name=f"KV_{bucket}",
        mirror=StreamSource(name=f"KV_{bucket}", external=ExternalStream(api=subjects.domain_api(home))),
        republish=RePublish(src=own, dest=own),
        max_msgs_per_subject=1,
        allow_direct=True,
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        deny_delete=True,
    )
