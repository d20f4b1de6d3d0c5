"""The hash chains that make tampering with committed rows evident.

The rows of each day (UTC, by submission) are a chain of their own, in the order they were committed:

    hash(0) = 32 zero bytes,  hash(n) = SHA-256(hash(n - 1) || canonical bytes of row n)

A row changed, removed or put between others changes every hash after it; rows cut off at the end are found by the
number of rows and the head that are kept beside the chain. A day whose old rows were dropped goes on from its last hash.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from goodput_accountant.policy.accounting import LedgerRow
from tokenfleet.errors import ContractError

START = bytes(32)
DAY_NS = 86_400 * 10**9
EARLIEST_DAY, LATEST_DAY = 18_262, 47_481
"""The years 2020 to 2099, in days since 1970: a time outside is a mistake, and each day has a partition of its own."""

ROW_SCHEMA = 2
"""Of the rows written now. Rises with every change to `LedgerRow`."""
_SCHEMA_1 = (
    "event_id",
    "event_schema",
    "request_id",
    "attempt",
    "client_request_id",
    "tenant",
    "request_class",
    "site",
    "pool",
    "model",
    "instance",
    "outcome",
    "reason",
    "status",
    "stream",
    "admitted",
    "degraded",
    "submitted_ns",
    "ended_ns",
    "time_scale",
    "input_tokens",
    "reused_tokens",
    "computed_tokens",
    "output_tokens",
    "tokens_exact",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "predicted_ttft_s",
    "predicted_tpot_s",
    "objective_ttft_s",
    "objective_tpot_s",
    "objective_e2e_s",
    "met",
    "missed",
    "good_output_tokens",
    "waste_cause",
    "wasted_input_tokens",
    "wasted_output_tokens",
    "retried_input_tokens",
    "retried_output_tokens",
)
CANONICAL: dict[int, tuple[str, ...]] = {
    1: _SCHEMA_1,
    2: (
        *_SCHEMA_1,
        "queue_wait_s",
        "revision",
        "prefill_gpu_s",
        "decode_gpu_s",
        "retried_gpu_s",
        "wasted_gpu_s",
    ),
}
"""By schema of the row, the columns that its hash covers, in this order. Written out, so that a column
added to `LedgerRow` cannot change the hashes of rows that are there: an entry is never changed, a new one is added."""
FIELDS = CANONICAL[ROW_SCHEMA]
"""The columns of a row written now."""

_encode = msgspec.json.Encoder().encode


def day_of(row: LedgerRow) -> int:
    """The day a row belongs to, in days since 1970.

    Raises:
        ContractError: it is not credible.
    """
    day = row.submitted_ns // DAY_NS
    if not EARLIEST_DAY <= day <= LATEST_DAY or row.ended_ns // DAY_NS > LATEST_DAY:
        raise ContractError(
            f"the times of request {row.request_id} are not credible: submitted {row.submitted_ns}, ended {row.ended_ns}"
        )
    return day


def canonical(values: Mapping[str, object], schema: int) -> bytes:
    """A row as bytes: the JSON array of its schema and the columns of that schema.

    Args:
        values: the row's columns by name.
        schema: the row's schema.

    Raises:
        KeyError: there is no such schema.
    """
    return _encode([schema, *(values[name] for name in CANONICAL[schema])])


def canonical_values(values: tuple[object, ...]) -> bytes:
    """The same of a row about to be written, from its columns in their order."""
    return _encode((ROW_SCHEMA, *values))


def link(head: bytes, rows: Iterable[bytes]) -> Sequence[bytes]:
    """The hashes of rows that follow `head`, from their canonical bytes."""
    hashes: list[bytes] = []
    for row in rows:
        head = hashlib.sha256(head + row).digest()
        hashes.append(head)
    return hashes
