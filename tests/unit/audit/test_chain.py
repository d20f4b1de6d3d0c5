"""What the hashes cover, which rows already written hold for ever."""

import hashlib

import msgspec

from goodput_accountant.policy.accounting import LedgerRow, account
from goodput_accountant.policy.chain import CANONICAL, FIELDS, ROW_SCHEMA, canonical, canonical_values
from tokenfleet.contracts.requests import Ended

ROW = account(
    Ended(
        event_id="r1.end",
        request_id="r1",
        attempt=1,
        tenant="acme",
        pool="llama@1",
        site="a",
        time_ns=1_764_590_401_000_000_001,
        outcome="completed",
        reason="stop",
        status=200,
        model="llama",
        stream=True,
        submitted_ns=1_764_590_400_000_000_000,
        e2e_s=1.0,
        input_tokens=10,
        output_tokens=2,
        ttft_s=0.1,
    )
)


def test_rows_written_now_have_the_columns_of_the_latest_schema_in_its_order() -> None:
    assert max(CANONICAL) == ROW_SCHEMA
    assert tuple(field.name for field in msgspec.structs.fields(LedgerRow)) == FIELDS
    assert canonical_values(msgspec.structs.astuple(ROW)) == canonical(
        msgspec.structs.asdict(ROW), ROW_SCHEMA
    )


def test_the_bytes_of_rows_that_are_there_never_change() -> None:
    digests = {
        schema: hashlib.sha256(canonical(msgspec.structs.asdict(ROW), schema)).hexdigest()
        for schema in (1, 2)
    }
    assert digests == {
        1: "239424b766f01b317308b1dcdd82491e03094ff7de94dc03dae1a000355065b4",
        2: "61e8a5b275f2545e3c1f712b40430190fd0783ea64c42d5e8548e413b5b19a68",
    }
