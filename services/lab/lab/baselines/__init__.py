"""Published routers, each from its own definition with its default constants, as policies for the simulator."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from lab.baselines.common import Router
from lab.baselines.dynamo_kv import DynamoKv
from lab.baselines.gorgo import Gorgo, Gorgo2
from lab.baselines.llm_d import LlmD
from lab.baselines.llm_d_flow_control import LlmDFlowControl
from lab.baselines.llm_d_predicted_latency import LlmDPredictedLatency
from lab.baselines.mooncake_conductor import MooncakeConductor
from lab.baselines.preble_e2 import PrebleE2
from lab.baselines.simple import LeastRequests, PowerOfTwo, RandomChoice, RoundRobin
from lab.baselines.sites import GlobalLeastLoad, RegionLocal
from lab.baselines.skywalker import SkyWalker
from lab.baselines.smg_cache_aware import SmgCacheAware
from lab.baselines.smg_least_load import PUBLISHED_POLL_S, SmgLeastLoad
from lab.baselines.vllm_consistent_hash import VllmConsistentHash


class Baseline(NamedTuple):
    """How to make a policy for one run, given a seed, and what it is."""

    make: Callable[[int], Router]
    description: str
    several_sites: bool = False
    """Whether it is about the choice of a site; the others see one pool."""

    def __call__(self, seed: int) -> Router:
        return self.make(seed)


REGISTRY: dict[str, Baseline] = {
    "random": Baseline(RandomChoice, "any instance, each equally likely"),
    "round_robin": Baseline(RoundRobin, "one instance after the other"),
    "least_requests": Baseline(LeastRequests, "fewest requests in flight"),
    "power_of_two": Baseline(PowerOfTwo, "fewer requests in flight of two drawn"),
    "smg_cache_aware": Baseline(
        SmgCacheAware, "SMG/SGLang: longest known prefix, else smallest tree (0.3, 64, 1.5)"
    ),
    "smg_cache_aware_shortest_queue": Baseline(
        partial(SmgCacheAware, smallest_tree=False),
        "SMG as released: longest known prefix, else shortest queue",
    ),
    "smg_least_load": Baseline(SmgLeastLoad, "SMG: drain time and KV barrier, polled with every reading"),
    "smg_least_load_10s": Baseline(
        partial(SmgLeastLoad, poll_s=PUBLISHED_POLL_S),
        "SMG: the same, polled every 10 s as it does by default",
    ),
    "vllm_consistent_hash": Baseline(VllmConsistentHash, "vLLM router: sessions on a hash ring"),
    "llm_d": Baseline(LlmD, "llm-d: queue 2, KV 2, prefix 3, highest score"),
    "llm_d_flow_control": Baseline(
        LlmDFlowControl, "llm-d: the same, held at the router while saturated (5, 0.8)"
    ),
    "llm_d_predicted_latency": Baseline(
        LlmDPredictedLatency, "llm-d: learned TTFT and TPOT, affinity, least headroom"
    ),
    "llm_d_predicted_latency_most": Baseline(
        partial(LlmDPredictedLatency, most_headroom=True), "llm-d: the same, preferring the most headroom"
    ),
    "dynamo_kv": Baseline(DynamoKv, "NVIDIA Dynamo: least prefill and decode blocks"),
    "preble_e2": Baseline(PrebleE2, "Preble: exploit a cached prefix or explore the least load"),
    "mooncake_conductor": Baseline(MooncakeConductor, "Mooncake: least predicted TTFT, early rejection"),
    "region_local": Baseline(RegionLocal, "fewest requests in flight at the entry site", several_sites=True),
    "global_least_load": Baseline(GlobalLeastLoad, "fewest requests in flight anywhere", several_sites=True),
    "skywalker": Baseline(
        SkyWalker, "SkyWalker: prefix, selective pushing between sites", several_sites=True
    ),
    "gorgo": Baseline(
        Gorgo, "GORGO: round trip and prefill, among instances with nothing waiting", several_sites=True
    ),
    "gorgo2": Baseline(Gorgo2, "GORGO: the same against staying", several_sites=True),
}
"""Name -> baseline. Instances become known by `joined`."""
