"""The kinds of traffic that the generator makes, in figures.

`chat` and `agent` are fitted to Mooncake's conversation and synthetic traces, `long_context` to the prompts
above 32,000 tokens of the former; `batch` is fitted to no trace. Quantiles and session sizes are as counted
there, except that chat has fewer sessions of one request than counted: the trace's prompts also branch and
share more than a session's turns do, and so its reusable share is met. Correlations are set so that those of
the logarithms of the lengths come out as measured.
"""

import msgspec

Quantiles = tuple[tuple[float, float], ...]
"""`(share, value)` from share 0 to 1; values between are interpolated on a logarithmic scale."""


class Stratum(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions that resemble each other. Correlations are of the normal scores behind the lengths."""

    share: float
    """Of the requests of its kind."""
    session_sizes: tuple[tuple[int, float], ...]
    """`(requests, weight)`: how many requests sessions have."""
    gaps_s: Quantiles
    """From one request of a session to the next."""
    input_tokens: Quantiles
    output_tokens: Quantiles
    inputs_alike: float = 0.0
    """Correlation of the input lengths within a session."""
    outputs_alike: float = 0.0
    """Correlation of the output lengths within a session, beyond what the inputs explain."""
    output_by_input: float = 0.0
    """Correlation of a request's output length with its input length."""
    template_tokens: int | None = None
    """What the prompts of a session have in common. None: each prompt continues the one before."""
    deadline_s: Quantiles | None = None
    """From the first request of a session until all its answers are due."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of traffic; its name is the task type of its requests."""

    name: str
    rate_per_s: float
    """Requests per second, unless another rate is asked for."""
    strata: tuple[Stratum, ...]
    system_prompt_blocks: int = 0
    """Blocks that all prompts of the kind begin with."""
    fit: str
    """Where the figures come from, for the reader of a result."""


CHAT = Kind(
    name="chat",
    rate_per_s=3.4,
    system_prompt_blocks=1,
    fit="chat: lengths, rate, turns and reusable share fitted to Mooncake's conversation trace",
    strata=(
        Stratum(
            share=1.0,
            session_sizes=(
                (1, 4_450),
                (2, 1_225),
                (3, 391),
                (4, 168),
                (5, 92),
                (6, 48),
                (7, 23),
                (8, 17),
                (10, 23),
                (13, 10),
                (16, 10),
                (25, 3),
            ),
            gaps_s=(
                (0, 5),
                (0.1, 41),
                (0.25, 67),
                (0.5, 125),
                (0.75, 272),
                (0.9, 481),
                (0.99, 1_470),
                (1, 3_000),
            ),
            input_tokens=(
                (0, 891),
                (0.1, 964),
                (0.25, 2_306),
                (0.5, 6_909),
                (0.75, 15_367),
                (0.9, 27_367),
                (0.95, 39_550),
                (0.99, 85_399),
                (1, 126_195),
            ),
            output_tokens=(
                (0, 1),
                (0.05, 10),
                (0.1, 24),
                (0.25, 156),
                (0.5, 350),
                (0.75, 472),
                (0.9, 597),
                (0.95, 698),
                (0.99, 1_115),
                (1, 2_000),
            ),
            inputs_alike=0.975,
            outputs_alike=0.69,
            output_by_input=0.05,
        ),
    ),
)

AGENT = Kind(
    name="agent",
    rate_per_s=3.9,
    fit=(
        "agent: lengths, rate, steps, reusable share and length correlations fitted to Mooncake's synthetic "
        "(tool and agent) trace"
    ),
    strata=(
        Stratum(
            share=0.444,
            session_sizes=((1, 1),),
            gaps_s=((0, 1), (1, 1)),
            input_tokens=(
                (0, 13),
                (0.05, 19),
                (0.1, 22),
                (0.25, 34),
                (0.5, 169),
                (0.64, 991),
                (0.68, 1_872),
                (0.75, 14_214),
                (0.9, 19_624),
                (0.95, 24_428),
                (0.99, 41_154),
                (1, 134_773),
            ),
            output_tokens=(
                (0, 1),
                (0.05, 17),
                (0.1, 43),
                (0.25, 140),
                (0.5, 251),
                (0.75, 354),
                (0.9, 512),
                (0.95, 664),
                (0.99, 781),
                (1, 842),
            ),
        ),
        Stratum(
            share=0.556,
            session_sizes=(
                (2, 75),
                (3, 66),
                (4, 60),
                (5, 45),
                (6, 55),
                (7, 32),
                (8, 25),
                (9, 15),
                (10, 10),
                (12, 9),
                (14, 11),
                (20, 5),
            ),
            gaps_s=(
                (0, 0.3),
                (0.1, 4),
                (0.25, 16),
                (0.5, 55),
                (0.75, 147),
                (0.9, 279),
                (0.99, 568),
                (1, 792),
            ),
            input_tokens=(
                (0, 13),
                (0.01, 24),
                (0.05, 2_696),
                (0.1, 3_160),
                (0.25, 6_788),
                (0.5, 18_150),
                (0.75, 35_221),
                (0.9, 45_119),
                (0.95, 54_833),
                (0.99, 66_766),
                (1, 191_378),
            ),
            output_tokens=(
                (0, 2),
                (0.1, 2),
                (0.25, 6),
                (0.5, 15),
                (0.75, 54),
                (0.9, 117),
                (0.95, 213),
                (0.99, 531),
                (1, 893),
            ),
            inputs_alike=0.9997,
            outputs_alike=0.75,
            output_by_input=-0.35,
        ),
    ),
)

LONG_CONTEXT = Kind(
    name="long_context",
    rate_per_s=0.6,
    fit=(
        "long_context: lengths fitted to the prompts above 32,000 tokens of Mooncake's conversation trace; "
        "one to four questions on each document are assumed"
    ),
    strata=(
        Stratum(
            share=1.0,
            session_sizes=((1, 50), (2, 25), (3, 15), (4, 10)),
            gaps_s=((0, 10), (0.1, 41), (0.5, 125), (0.9, 481), (1, 1_470)),
            input_tokens=(
                (0, 32_000),
                (0.1, 33_516),
                (0.25, 37_776),
                (0.5, 47_749),
                (0.75, 68_181),
                (0.9, 94_778),
                (0.95, 112_914),
                (1, 126_195),
            ),
            output_tokens=(
                (0, 1),
                (0.05, 7),
                (0.1, 18),
                (0.25, 197),
                (0.5, 383),
                (0.75, 511),
                (0.9, 660),
                (0.95, 942),
                (1, 2_000),
            ),
            inputs_alike=0.9997,
            outputs_alike=0.5,
        ),
    ),
)

BATCH = Kind(
    name="batch",
    rate_per_s=3.4,
    fit=(
        "batch: fitted to no trace; jobs of 50 to 400 requests sent within seconds, one 1,024-token template "
        "for each job, due 10 minutes to 2 hours after its start"
    ),
    strata=(
        Stratum(
            share=1.0,
            session_sizes=((50, 8), (100, 4), (200, 2), (400, 1)),
            gaps_s=((0, 0.001), (0.5, 0.02), (1, 0.2)),
            input_tokens=((0, 1_100), (0.1, 1_300), (0.5, 2_400), (0.9, 6_000), (0.99, 16_000), (1, 32_000)),
            output_tokens=((0, 1), (0.1, 20), (0.5, 150), (0.9, 500), (1, 1_500)),
            inputs_alike=0.3,
            outputs_alike=0.6,
            template_tokens=1_024,
            deadline_s=((0, 600), (0.5, 1_800), (1, 7_200)),
        ),
    ),
)

KINDS = {kind.name: kind for kind in (CHAT, LONG_CONTEXT, AGENT, BATCH)}
