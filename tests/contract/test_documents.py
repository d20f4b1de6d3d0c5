"""The committed documents say what the code says."""

from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner

from console.main import cli

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = REPOSITORY / "docs" / "contracts"
GOLDEN = Path(__file__).parent / "golden"


def test_the_committed_documents_are_current(tmp_path: Path):
    result = CliRunner().invoke(cli, ["contracts", "--write", str(tmp_path)])
    assert result.exit_code == 0, result.output
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in DOCUMENTS.iterdir()}
    assert committed == made, "run `make docs`"


@pytest.mark.parametrize("name", ["Submitted", "Admitted", "Routed"])
def test_a_reader_of_another_language_can_check_our_events_by_the_schema(name: str):
    schema = msgspec.json.decode((DOCUMENTS / f"{name}.schema.json").read_bytes())
    event = msgspec.json.decode((GOLDEN / f"{name.lower()}.v1.json").read_bytes())
    jsonschema.validate(event, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**event, "attempt": "first"}, schema)


def test_the_control_plane_document_names_its_channels():
    document = msgspec.json.decode((DOCUMENTS / "control-plane.asyncapi.json").read_bytes())
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses == {
        "tf.v1.{site}.capacity.{pool}",
        "tf.v1.{site}.history.{pool}",
        "tf.v1.{site}.goodput.{pool}",
        "tf.v1.fleet.plan",
    }
    assert document["asyncapi"].startswith("3.")
