"""Metrics and traces, set up once per process.

Metrics are OpenTelemetry instruments read by Prometheus (`/metrics`) and, when `OTEL_EXPORTER_OTLP_ENDPOINT` is set,
pushed by OTLP. Traces are recorded only when that is set; their context crosses NATS and HTTP in
`traceparent` headers.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping

from opentelemetry import metrics, propagate, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

# The boundaries OpenTelemetry's GenAI conventions advise for each instrument, extended upwards for TTFT.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
_BUCKETS = {
    "gen_ai.server.time_to_first_token": _SECONDS,
    "gen_ai.server.request.duration": _SECONDS,
    "gen_ai.server.time_per_output_token": _PER_TOKEN,
    "gen_ai.client.token.usage": _TOKENS,
}


def _otlp_configured() -> bool:
    return bool(os.environ.get(OTLP_ENDPOINT))


class Observability:
    """The meter and tracer of one process."""

    def __init__(self, service: str, site: str, replica: str) -> None:
        resource = Resource.create(
            {"service.name": f"tokenfleet-{service}", "service.instance.id": replica, "tokenfleet.site": site}
        )
        readers: list[MetricReader] = [PrometheusMetricReader(disable_target_info=True)]
        self._tracer_provider: TracerProvider | None = None
        if _otlp_configured():
            # Imported here: 0.3 s of CPU that a process without OTLP need not pay at each start.
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=10_000))
            self._tracer_provider = TracerProvider(resource=resource)
            self._tracer_provider.add_span_processor(
                BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=1000)
            )
            trace.set_tracer_provider(self._tracer_provider)
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
            for name, bounds in _BUCKETS.items()
        ]
        self._meter_provider = MeterProvider(resource=resource, metric_readers=readers, views=views)
        metrics.set_meter_provider(self._meter_provider)
        self.meter: Meter = self._meter_provider.get_meter("tokenfleet")
        self.tracing = self._tracer_provider is not None
        self._tracer = trace.get_tracer("tokenfleet")

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        headers: Mapping[str, str] | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        kind: SpanKind = SpanKind.CONSUMER,
    ) -> Iterator[dict[str, str]]:
        """A span continuing the context in `headers`; gives the headers that carry it onwards.

        Without tracing the incoming `traceparent` is passed on unchanged, at no cost.
        """
        if not self.tracing:
            parent = (headers or {}).get("traceparent")
            yield {"traceparent": parent} if parent else {}
            return
        context = propagate.extract(dict(headers or {}))
        with self._tracer.start_as_current_span(name, context=context, kind=kind, attributes=attributes):
            onwards: dict[str, str] = {}
            propagate.inject(onwards)
            yield onwards

    def shutdown(self) -> None:
        """Export what is left."""
        if self._tracer_provider:
            self._tracer_provider.shutdown()
        self._meter_provider.shutdown()
