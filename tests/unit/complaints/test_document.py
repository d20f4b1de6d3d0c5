"""docs/peers-complaints.md names only tests that exist."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
DOCUMENT = (REPOSITORY / "docs" / "peers-complaints.md").read_text()
ROWS = {1, 3, 4, 6, 7, 9, 10, 11, 12, 13, 14, 16, 17, 18, 20, 21, 22, 23, 24, 25, 27, 29, 32, 33, 34}
"""Those about routing, load accounting, the index, prediction, retries, queues, admission, batches or accounting."""


def table() -> dict[int, list[str]]:
    """The tests of each row."""
    lines = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", DOCUMENT, flags=re.MULTILINE)
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in lines}


def test_every_complaint_has_a_behaviour_with_tests():
    assert table().keys() == ROWS
    assert all(table().values())


@pytest.mark.parametrize("name", sorted({name for names in table().values() for name in names}))
def test_the_test_is_there(name: str):
    path, _, test = name.partition("::")
    source = (REPOSITORY / path).read_text()
    assert re.search(rf"^(class|\s*(async )?def) {re.escape(test)}\b", source, flags=re.MULTILINE), name
