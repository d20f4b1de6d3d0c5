"""What ingress measures, under OpenTelemetry's GenAI names where they exist."""

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ingress.journal import Journal
from ingress.prompt import Method
from ingress.validation import Operation
from tokenfleet.contracts.requests import Ended

PROVIDER = "tokenfleet"


class Metrics:
    """The instruments. Durations are engine seconds."""

    def __init__(self, meter: Meter, journal: Journal) -> None:
        self._ttft = meter.create_histogram("gen_ai.server.time_to_first_token", unit="s")
        self._tpot = meter.create_histogram("gen_ai.server.time_per_output_token", unit="s")
        self._duration = meter.create_histogram("gen_ai.server.request.duration", unit="s")
        self._usage = meter.create_histogram("gen_ai.client.token.usage", unit="{token}")
        self._requests = meter.create_counter("tokenfleet.ingress.requests", description="By outcome.")
        self._errors = meter.create_counter(
            "tokenfleet.ingress.invalid_requests", description="Answered with an error before acceptance."
        )
        self.resubmitted = meter.create_counter(
            "tokenfleet.ingress.resubmitted", description="Submitted again for want of a decision."
        )
        self.degraded = meter.create_counter(
            "tokenfleet.ingress.degraded", description="Routed by ingress alone for want of a decision."
        )
        self.retried = meter.create_counter("tokenfleet.ingress.retried", description="By reason.")
        self._prompts = meter.create_counter(
            "tokenfleet.ingress.prompts", description="By how their token ids were told."
        )
        self.in_flight = meter.create_up_down_counter("tokenfleet.ingress.in_flight")

        def backlog(_: CallbackOptions) -> list[Observation]:
            return [Observation(journal.backlog)]

        meter.create_observable_gauge("tokenfleet.ingress.journal_backlog", callbacks=[backlog])

    def invalid(self, status: int) -> None:
        self._errors.add(1, {"http.response.status_code": status})

    def tokenized(self, model: str, method: Method | None) -> None:
        """Count a prompt; `given` are those that came as token ids."""
        attributes = {"gen_ai.request.model": model, "tokenfleet.tokenization": method or "given"}
        self._prompts.add(1, attributes)

    def ended(self, ended: Ended, operation: Operation) -> None:
        """Count a request that is over."""
        attributes: dict[str, str] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": ended.model,
        }
        self._requests.add(
            1,
            {
                **attributes,
                "tokenfleet.outcome": ended.outcome,
                "tokenfleet.class": ended.request_class or "none",
            },
        )
        failed = {} if ended.outcome == "completed" else {"error.type": ended.outcome}
        self._duration.record(ended.e2e_s, {**attributes, **failed})
        if ended.ttft_s is not None:
            self._ttft.record(ended.ttft_s, attributes)
        if ended.tpot_s is not None:
            self._tpot.record(ended.tpot_s, attributes)
        if ended.instance is not None and ended.outcome != "rejected":
            self._usage.record(ended.input_tokens, {**attributes, "gen_ai.token.type": "input"})
            self._usage.record(ended.output_tokens, {**attributes, "gen_ai.token.type": "output"})
