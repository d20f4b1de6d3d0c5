"""JSON Schemas of the messages: complete, well-formed, and true of what is sent."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from console.main import cli
from console.schemas import schemas
from tokenfleet.contracts.requests import EVENT_TYPES, Refused

REFUSED = Refused(
    event_id="r.1.refused",
    request_id="r",
    attempt=1,
    tenant="default",
    pool="llama@1",
    site="local",
    time_ns=1,
    status=429,
    reason="admission_slack",
    message="busy",
)


def test_every_event_of_a_requests_life_has_a_schema():
    assert {event.__name__ for event in EVENT_TYPES.values()} <= schemas().keys()


@pytest.mark.parametrize("name", schemas())
def test_every_schema_is_valid_json_schema(name: str):
    Draft202012Validator.check_schema(schemas()[name])


def test_a_message_satisfies_its_schema_and_a_broken_one_does_not():
    validator = Draft202012Validator(schemas()["Refused"])
    message = json.loads(msgspec.json.encode(REFUSED))
    assert validator.is_valid(message)
    assert not validator.is_valid(message | {"status": "busy"})


def test_written_schemas_are_the_same_whenever_they_are_written(tmp_path: Path):
    for folder in ("one", "two"):
        assert CliRunner().invoke(cli, ["contracts", "--write", str(tmp_path / folder)]).exit_code == 0
    written = {file.name: file.read_text() for file in (tmp_path / "one").iterdir()}
    assert written == {file.name: file.read_text() for file in (tmp_path / "two").iterdir()}
    assert json.loads(written["Refused.schema.json"]) == json.loads(json.dumps(schemas()["Refused"]))
