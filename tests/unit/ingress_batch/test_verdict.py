"""An answer is a line's result unless there is a reason to ask again."""

import pytest

from ingress.policy.batch.verdict import LONGEST_DELAY_S, MAX_FAILURES, Again, Final, Verdict, judge


def verdict(status: int, retry_after_s: float | None = None, **earlier: float) -> Verdict:
    given = {"refusals": 0, "failures": 0, "jitter": 0.5} | earlier
    return judge(
        status,
        retry_after_s,
        refusals=int(given["refusals"]),
        failures=int(given["failures"]),
        jitter=given["jitter"],
    )


def delay_s(status: int, retry_after_s: float | None = None, **earlier: float) -> float:
    again = verdict(status, retry_after_s, **earlier)
    assert isinstance(again, Again)
    return again.delay_s


def test_an_answer_is_the_result():
    assert verdict(200) == Final(succeeded=True)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_what_is_wrong_with_the_request_is_the_result(status: int):
    assert verdict(status) == Final(succeeded=False)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_fleet_never_fails_a_line(status: int):
    again = verdict(status, refusals=1_000)
    assert isinstance(again, Again)
    assert again.refused


def test_the_delay_grows_to_a_bound():
    delays = [delay_s(429, refusals=refusals) for refusals in range(12)]
    assert delays[0] < 1.0
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_S


def test_retry_after_is_heeded_within_the_bound():
    assert delay_s(429, 20.0) == 20.0
    assert delay_s(429, 1e9) == LONGEST_DELAY_S


def test_lines_refused_together_do_not_come_back_together():
    assert delay_s(429, 20.0, jitter=0.0) < delay_s(429, 20.0, jitter=0.9)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_server_error_is_the_result_only_when_it_lasts(status: int):
    for failures in range(MAX_FAILURES - 1):
        again = verdict(status, failures=failures)
        assert isinstance(again, Again)
        assert not again.refused
    assert verdict(status, failures=MAX_FAILURES - 1) == Final(succeeded=False)
