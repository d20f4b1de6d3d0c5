"""The committed documents say what the code says."""

import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner

from console.assignments import settings_of
from console.commands.common import shown
from console.main import cli
from tokenfleet.contracts.policy import CLASSES, Policy

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = REPOSITORY / "docs" / "contracts"
GOLDEN = Path(__file__).parent / "golden"


def test_the_committed_documents_are_current(tmp_path: Path):
    result = CliRunner().invoke(cli, ["contracts", "--write", str(tmp_path)])
    assert result.exit_code == 0, result.output
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in DOCUMENTS.iterdir()}
    assert committed == made, "run `make docs`"


@pytest.mark.parametrize("name", ["Submitted", "Queued", "Admitted", "Routed"])
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
        "tf.v1.{site}.control.{pool}",
        "tf.v1.{site}.plan",
        "tf.v1.{site}.planned",
    }
    assert document["asyncapi"].startswith("3.")


def test_the_operations_guide_has_every_setting_of_the_policy_with_its_default():
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    section = text.partition("## The live policy")[2].partition("\n## ")[0]
    written = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", section, flags=re.MULTILINE))
    names = "|".join(CLASSES)
    by_key: dict[str, dict[str, str]] = {}
    for key, value in settings_of(Policy()).items():
        name = re.search(rf"\.({names})\.", key)
        generic = re.sub(rf"\.({names})\.", ".CLASS.", key)
        by_key.setdefault(generic, {})[name[1] if name else ""] = shown(value)
    assert written.keys() == by_key.keys()
    for key, values in by_key.items():
        said = {value for value in values.values() if value != "null"} or {"none"}
        for value in said:
            number = value.removesuffix(".0")
            assert re.search(rf"(^|\s){re.escape(number)}(,|$|\s)", written[key]), f"{key}: {values}"
