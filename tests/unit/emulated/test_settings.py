"""The settings of an emulated engine."""

import pytest

from node_agent.emulated.settings import EngineSettings
from tokenfleet.errors import ConfigurationError
from tokenfleet.settings import load


def test_the_kv_scale_multiplies_the_capacity_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKENFLEET_ENGINE_KV_SCALE", "4")
    profile = load(EngineSettings).profile
    assert profile.kv_capacity_tokens == 4 * 450_560
    assert profile.name == "llama70b-tp4-h100"


def test_an_unknown_profile_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKENFLEET_ENGINE_PROFILE", "abacus")
    with pytest.raises(ConfigurationError, match=r"ENGINE_PROFILE.*abacus.*llama70b-tp4-h100"):
        load(EngineSettings)
