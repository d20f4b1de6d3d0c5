"""Subject tokens."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet import subjects


@given(st.text(min_size=1).filter(lambda s: s.isprintable() or True))
def test_any_name_becomes_one_safe_token_and_comes_back(name: str):
    try:
        name.encode()
    except UnicodeEncodeError:  # lone surrogates are not text
        return
    token = subjects.token(name)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", token)
    assert subjects.name_of(token) == name


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="empty"):
        subjects.token("")


def test_answers_end_in_the_ingress_they_are_for():
    subject = subjects.request("eu.1", "m@v1", "routed", "ingress-1")
    assert subject == "tf.v1.eu=2E1.request.m=40v1.routed.ingress-1"
    assert subjects.answers_to("ingress-1") == "tf.v1.*.request.*.*.ingress-1"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("llama", ("llama", None)), ("org/llama@v2", ("org/llama", "v2")), ("@x", ("x", None))],
)
def test_a_version_is_pinned_behind_an_at_sign(asked: str, expected: tuple[str, str | None]):
    assert subjects.split_model(asked) == expected
