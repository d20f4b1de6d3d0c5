"""Where a service answers, as it says in its log."""

from pathlib import Path

from console.health import admin_url

STARTED = '{{"admin": "(\'127.0.0.1\', {port})", "replica": "one", "event": "started"}}\n'


def test_the_latest_start_counts(tmp_path: Path):
    log = tmp_path / "tokenpilot.log"
    log.write_text(STARTED.format(port=1234) + '{"event": "lease taken"}\n' + STARTED.format(port=5678))
    assert admin_url(log) == "http://127.0.0.1:5678"


def test_before_it_has_started_there_is_no_address(tmp_path: Path):
    log = tmp_path / "tokenpilot.log"
    assert admin_url(log) is None
    log.write_text('{"event": "NATS is away"}\n')
    assert admin_url(log) is None
