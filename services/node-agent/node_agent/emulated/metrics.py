"""The engine's metrics under vLLM's names, read from the model when they are scraped."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node_agent.emulated.driver import EngineDriver

FINISHED_REASONS = ("stop", "length", "abort")


class EngineCollector(Collector):
    """Makes vLLM's metrics of one engine."""

    def __init__(self, driver: EngineDriver, model_name: str) -> None:
        self._driver = driver
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        self._driver.refresh()
        model = self._driver.model
        counters = model.counters
        yield self._gauge("vllm:num_requests_running", "Requests in the batch.", model.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests not scheduled yet.", model.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1.", model.kv_usage)
        yield self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", counters.prefix_query_tokens
        )
        yield self._counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the cache.", counters.prefix_hit_tokens
        )
        yield self._counter("vllm:prompt_tokens", "Prompt tokens processed.", counters.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", counters.generation_tokens)
        yield self._counter("vllm:num_preemptions", "Preemptions.", counters.preemptions)
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests ended.", labels=("finished_reason", "model_name")
        )
        for reason in FINISHED_REASONS:
            ended.add_metric((reason, self._model_name), self._driver.ended[reason])
        yield ended
        cache = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache.", labels=("block_size", "num_gpu_blocks", "model_name")
        )
        cache.add_metric((str(model.block_size), str(model.kv.capacity_blocks), self._model_name), 1)
        yield cache

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family


def engine_registry(driver: EngineDriver, model_name: str) -> CollectorRegistry:
    """The engine's metrics and its process's (start time, CPU, memory)."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(driver, model_name))
    ProcessCollector(registry=registry)
    return registry
