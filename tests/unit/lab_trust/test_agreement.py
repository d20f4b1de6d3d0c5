"""When two runs agree, and what a run's figures are."""

import pytest

from lab.trust.agreement import agreement
from lab.trust.served import Figures, Served, figures


def served(
    ttft_s: float | None = 1.0, tpot_s: float | None = 0.05, input_tokens: int = 1_000, reused_tokens: int = 0
) -> Served:
    return Served(
        input_tokens=input_tokens,
        output_tokens=10 if ttft_s is not None else 0,
        reused_tokens=reused_tokens,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        ended_s=20.0,
    )


def run(factor: float) -> Figures:
    return figures([served(ttft_s=factor * ttft_s, reused_tokens=100) for ttft_s in (1.0, 2.0, 3.0)])


def test_figures_within_the_bar_agree_and_beyond_it_do_not():
    assert agreement(run(1.0), run(1.09), 0.10).agrees
    apart = agreement(run(1.0), run(1.11), 0.10)
    assert not apart.agrees
    assert [quantity.name for quantity in apart.quantities if not quantity.agrees] == [
        "ttft_p50_s",
        "ttft_p95_s",
    ]
    assert apart.quantities[0].difference == pytest.approx(0.11)
    assert apart.as_json()["agrees"] is False


@pytest.mark.parametrize(
    ("request_", "met"),
    [
        (served(ttft_s=4.0, tpot_s=0.1), True),
        (served(ttft_s=4.1), False),
        (served(ttft_s=7.9, input_tokens=32_000), True),
        (served(tpot_s=0.11), False),
        (served(tpot_s=None), True),
        (served(ttft_s=None, tpot_s=None), False),
    ],
)
def test_a_request_is_met_by_the_reference_objective(request_: Served, met: bool):
    assert request_.met is met


def test_refused_requests_count_against_attainment_but_not_against_reuse():
    found = figures([served(reused_tokens=500), served(ttft_s=None, tpot_s=None)])
    assert (found.offered, found.answered) == (2, 1)
    assert found.attainment == 0.5
    assert found.prefix_reuse == 0.5
    assert found.goodput_tokens_per_s == 10 / 20.0
