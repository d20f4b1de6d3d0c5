"""What JetStream keeps, and for how long."""

from nats.js.api import DiscardPolicy, KeyValueConfig, RetentionPolicy, StorageType, StreamConfig

from tokenfleet import subjects

DAY_S = 24 * 3600.0

STREAMS = (
    StreamConfig(
        name=subjects.STREAM_REQUESTS,
        subjects=list(subjects.REQUESTS_STREAM_SUBJECTS),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        max_age=7 * DAY_S,
        duplicate_window=120.0,
    ),
    StreamConfig(
        name=subjects.STREAM_FLEET,
        subjects=list(subjects.FLEET_STREAM_SUBJECTS),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        max_age=30 * DAY_S,
        max_bytes=1 << 30,
    ),
    StreamConfig(
        name=subjects.STREAM_DEAD_LETTERS,
        subjects=[subjects.ALL_DEAD_LETTERS],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=30 * DAY_S,
        max_bytes=256 << 20,
        # As long as an event may take to be delivered again after its accountant died.
        duplicate_window=3600.0,
    ),
)
BUCKETS = {
    subjects.BUCKET_INSTANCES: KeyValueConfig(bucket=subjects.BUCKET_INSTANCES, ttl=10.0),
    subjects.BUCKET_LEASES: KeyValueConfig(bucket=subjects.BUCKET_LEASES, ttl=60.0),
    subjects.BUCKET_TENANTS: KeyValueConfig(bucket=subjects.BUCKET_TENANTS),
    subjects.BUCKET_POLICY: KeyValueConfig(bucket=subjects.BUCKET_POLICY),
    subjects.BUCKET_LATENCY: KeyValueConfig(bucket=subjects.BUCKET_LATENCY),
}
