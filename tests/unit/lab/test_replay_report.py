"""The report keeps the ledger's figures, in the shape that the JSON promises."""

import io

import msgspec
import pytest
from rich.console import Console

from lab.demo import conclusion
from lab.errors import ReplayError
from lab.replay.client import Answer
from lab.replay.counters import Counters, client_json
from lab.replay.drive import Accounting
from lab.replay.options import ReplayOptions, policy_for
from lab.replay.report import compare, report_json, report_table
from lab.replay.run import ReplayResult
from lab.traces.generator import generate
from tokenfleet.contracts.ledger import Percentiles, Prediction, PredictionError, Report, Summary
from tokenfleet.contracts.policy import Policy

COUNTS = ("offered", "completed", "rejected", "timed_out", "cancelled", "failed", "ledger_rows")
FIGURES = (
    "output_tokens_per_s",
    "goodput_tokens_per_s",
    "attainment_offered",
    "attainment_admitted",
    "prefix_reuse",
)


def summary(goodput: float = 800.0, attainment: float | None = 0.9) -> Summary:
    return Summary(
        offered=10,
        completed=6,
        rejected=1,
        timed_out=1,
        cancelled=1,
        failed=1,
        ledger_rows=10,
        duration_s=20.0,
        input_tokens=10_000,
        output_tokens=20_000,
        output_tokens_per_s=1_000.0,
        goodput_tokens_per_s=goodput,
        wasted_tokens=4_000,
        attainment_offered=attainment,
        attainment_admitted=0.95,
        prefix_reuse=0.125,
        degraded=0,
        ttft_s=Percentiles(p50=0.5, p95=2.0, p99=4.0),
        tpot_s=Percentiles(p50=0.03, p95=0.09),
        e2e_s=Percentiles(),
    )


def report(**changes: float) -> Report:
    return Report(
        total=summary(**changes), classes={"interactive": summary(), "batch": summary(attainment=None)}
    )


def printed(table: object) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def result(**accounting: tuple[str, ...]) -> ReplayResult:
    return ReplayResult(
        run="replay-x",
        trace=generate(10),
        model="m",
        options=ReplayOptions(policy="predicted"),
        time_scale=5.0,
        accounting=Accounting(report=report(), **accounting),
        counters=Counters(offered=10, sent=10, answers={0: Answer(ending="whole", status=200)}),
        wall_s=1.0,
    )


def test_the_json_has_every_promised_key_over_all_and_per_class():
    document = msgspec.json.decode(msgspec.json.encode(result().as_json()))
    for group in (document, document["classes"]["interactive"], document["classes"]["batch"]):
        assert set(COUNTS) | set(FIGURES) <= group.keys()
        for times in ("ttft_s", "tpot_s"):
            assert {"p50", "p95", "p99"} <= group[times].keys()
    assert document["goodput_tokens_per_s"] == 800.0
    assert document["classes"]["batch"]["attainment_offered"] is None
    assert document["client"]["statuses"] == {"200": 1}
    assert (document["missing"], document["duplicated"], document["time_scale"]) == ([], [], 5.0)


def test_the_outcomes_in_the_json_add_up_to_what_was_offered():
    document = report_json(report())
    outcomes = sum(document[name] for name in ("completed", "rejected", "timed_out", "cancelled", "failed"))
    assert outcomes == document["offered"] == document["ledger_rows"]


def test_a_missing_or_doubled_row_fails_the_replay_and_is_named():
    result().check()
    with pytest.raises(ReplayError, match=r"without a ledger row: replay-x-3"):
        result(missing=("replay-x-3",)).check()
    with pytest.raises(ReplayError, match=r"more than one ledger row: replay-x-4"):
        result(duplicated=("replay-x-4",)).check()


def test_the_table_shows_all_and_each_class_and_a_dash_for_what_nobody_measured():
    text = printed(report_table("title", report()))
    assert "interactive" in text
    assert "batch" in text
    p99 = next(line for line in text.splitlines() if "TPOT P99" in line)
    assert p99.count("-") == 3


def test_how_far_predictions_were_off_is_in_the_json_and_in_the_table_once_there_are_any():
    assert "predicted" not in printed(report_table("title", report()))
    error = PredictionError(n=9, median_ape=0.125, p90_ape=0.5)
    known = msgspec.structs.replace(report(), prediction=Prediction(ttft=error))
    assert report_json(known)["prediction"]["ttft"] == {"n": 9, "median_ape": 0.125, "p90_ape": 0.5}
    line = next(line for line in printed(report_table("title", known)).splitlines() if "predicted" in line)
    assert "12.5% / 50.0%" in line


def test_two_runs_side_by_side_show_the_ratio_of_the_first_to_the_second():
    text = printed(compare("title", {"ours": report(goodput=900.0), "theirs": report(goodput=600.0)}))
    goodput = next(line for line in text.splitlines() if "goodput" in line)
    assert "900" in goodput
    assert "600" in goodput
    assert "1.50x" in goodput


def test_a_ratio_to_nothing_is_not_shown():
    text = printed(compare("title", {"ours": report(goodput=900.0), "theirs": report(goodput=0.0)}))
    goodput = next(line for line in text.splitlines() if "goodput" in line)
    assert "x" not in goodput


def test_the_conclusion_says_what_the_figures_say_better_or_worse():
    assert "1.50 times the goodput" in conclusion(summary(goodput=900.0), summary(goodput=600.0))
    assert "0.50 times the goodput" in conclusion(summary(goodput=300.0), summary(goodput=600.0))
    assert "round robin none" in conclusion(summary(goodput=300.0), summary(goodput=0.0))


def test_client_figures_tell_unanswered_requests_from_answered_ones():
    counters = Counters(
        offered=3, answers={0: Answer(ending="whole", status=429), 1: Answer(ending="dropped")}
    )
    assert client_json(counters)["statuses"] == {"429": 1}
    assert client_json(counters)["endings"] == {"dropped": 1, "whole": 1}
    assert (counters.rejected, counters.errors) == (1, 1)


def test_a_baseline_switches_admission_off_and_leaves_the_rest_of_the_policy():
    live = Policy(routing="predicted", admission=True, request_timeout_s=7.0)
    baseline = policy_for("round_robin", live)
    assert (baseline.routing, baseline.admission, baseline.request_timeout_s) == ("round_robin", False, 7.0)
    assert policy_for("predicted", baseline) == live
