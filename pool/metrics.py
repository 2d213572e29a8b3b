"""What a pool tells its operators, under vLLM's names wherever vLLM has one.

Dashboards, autoscalers and the endpoint pickers of gateways know those names. What vLLM does not count
(goodput, waste, how soon a cancelled request is gone) is under `edgecloud_pool_`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import nan
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from .config import PoolConfig
from .distribution import Distribution
from .runner import RunnerFacts
from .sequence import Ended, EndReason, Job, StopReason
from .slo import Slo, seconds_per_token

# Bounds as vLLM's, in seconds and tokens.
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_LENGTH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CANCEL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_CHOICES = (1, 2, 5, 10, 20)

# vLLM's words for how a request ended.
_FINISHED: dict[EndReason, str] = {"abort": "abort", "deadline": "deadline", "error": "error"}
_WASTE: dict[EndReason, str] = {"abort": "cancelled", "deadline": "deadline", "error": "failed"}


class PoolStats(NamedTuple):
    """Gauges of now and counters since the start, as of the last step boundary. Counts are of requests,
    choices, blocks and tokens, as the names say; `swapped` to `refused` of what a lack of blocks led to.
    """

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    cached_blocks: int = 0
    host_blocks: int = 0
    steps: int = 0
    failed_steps: int = 0
    swapped: int = 0
    recomputed: int = 0
    kept: int = 0
    refused: int = 0
    length_coverage: float = nan
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def preemptions(self) -> int:
        return self.swapped + self.recomputed


class PoolMetrics(Collector):
    """Filled by the step loop's thread, read by whoever scrapes. `stats` gives the state at a scrape."""

    def __init__(
        self, facts: RunnerFacts, config: PoolConfig, slo: Slo, stats: Callable[[], PoolStats]
    ) -> None:
        self.model = facts.model
        self.facts = facts
        self.slo = slo
        self.stats = stats
        self._config = config
        self.finished: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.wasted: Counter[str] = Counter()
        self.num_good = 0
        self.ttft = _seconds("time_to_first_token", "From arrival to the first token.", _TTFT)
        self.inter_token = _seconds("inter_token_latency", "Between two tokens of one choice.", _TOKEN)
        self.per_token = _seconds(
            "request_time_per_output_token", "Mean per token after the first, by request.", _TOKEN
        )
        self.e2e = _seconds("e2e_request_latency", "From arrival to the last token.", _REQUEST)
        self.queue = _seconds("request_queue_time", "From arrival to admission.", _REQUEST)
        self.prefill = _seconds("request_prefill_time", "From admission to the first token.", _REQUEST)
        self.decode = _seconds("request_decode_time", "From the first token to the last.", _REQUEST)
        self.inference = _seconds("request_inference_time", "From admission to the last token.", _REQUEST)
        self.prompt_length = Distribution("vllm:request_prompt_tokens", "Prompt tokens by request.", _LENGTH)
        self.output_length = Distribution(
            "vllm:request_generation_tokens", "Tokens drawn by request, all choices together.", _LENGTH
        )
        self.max_length = Distribution("vllm:request_params_max_tokens", "max_tokens asked for.", _LENGTH)
        self.choices = Distribution("vllm:request_params_n", "Choices asked for.", _CHOICES)
        self.iteration = Distribution("vllm:iteration_tokens_total", "Tokens computed by step.", _ITERATION)
        self.cancel = Distribution(
            "edgecloud_pool_cancel_seconds", "From a cancel to the request's blocks being free.", _CANCEL
        )

    # ---------------------------------------------------------------------------- from the step loop's thread

    def accept(self, job: Job) -> None:
        self.max_length.observe(job.max_tokens)
        self.choices.observe(job.n)

    def end(self, end: Ended, stopped: StopReason | None) -> None:
        """Book a request's end; `stopped` says how its choices ended, if they did.

        What was computed for an answer that nobody got in full is waste.
        """
        reason = end.reason
        self.finished[_FINISHED.get(reason) or stopped or "length"] += 1
        self.num_good += self.slo.is_met(end)
        if reason != "done" and end.first_token_at is not None:
            self.wasted[_WASTE[reason]] += end.num_prompt - end.num_cached + end.num_output
        self.prompt_length.observe(end.num_prompt)
        self.output_length.observe(end.num_output)
        self.e2e.observe(end.ended_at - end.arrival)
        if end.admitted_at is None:
            return
        self.queue.observe(end.admitted_at - end.arrival)
        self.inference.observe(end.ended_at - end.admitted_at)
        if end.first_token_at is not None:
            self.prefill.observe(end.first_token_at - end.admitted_at)
            self.decode.observe(end.ended_at - end.first_token_at)
            if end.num_output > 1:
                self.per_token.observe(seconds_per_token(end))

    # ----------------------------------------------------------------------------------------------- a scrape

    def collect(self) -> Iterable[Metric]:
        """Everything, for the registry that this is registered with."""
        stats, config, labels = self.stats(), self._config, ("model_name",)
        for name, text, gauge in (
            ("vllm:num_requests_running", "Choices with KV blocks.", stats.running),
            ("vllm:num_requests_waiting", "Requests in the queue.", stats.waiting),
            (
                "vllm:kv_cache_usage_perc",
                "Share of the KV blocks in use, 0 to 1.",
                stats.used_blocks / config.num_blocks,
            ),
            ("edgecloud_pool_kv_blocks", "KV blocks there are.", config.num_blocks),
            (
                "edgecloud_pool_kv_blocks_cached",
                "KV blocks that only serve prefixes; given up when needed.",
                stats.cached_blocks,
            ),
            ("edgecloud_pool_host_blocks_used", "Blocks swapped to main memory.", stats.host_blocks),
            (
                "edgecloud_pool_length_coverage",
                "Share of recent answers no longer than expected when they were admitted; 0.9 is aimed for.",
                stats.length_coverage,
            ),
        ):
            family = GaugeMetricFamily(name, text, labels=labels)
            family.add_metric((self.model,), gauge)
            yield family
        for name, text, count in (
            (
                "vllm:num_preemptions",
                "Sequences that gave way for want of blocks.",
                stats.preemptions,
            ),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up among prefixes.", stats.prompt_tokens),
            ("vllm:prefix_cache_hits", "Prompt tokens found there.", stats.cached_tokens),
            ("vllm:prompt_tokens", "Prompt tokens, cached ones included.", stats.prompt_tokens),
            ("vllm:prompt_tokens_cached", "Prompt tokens not computed again.", stats.cached_tokens),
            ("vllm:generation_tokens", "Tokens drawn.", stats.output_tokens),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", stats.drafted_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", stats.accepted_tokens),
            ("edgecloud_pool_steps", "Steps of the engine.", stats.steps),
            ("edgecloud_pool_failed_steps", "Steps that failed, with their requests.", stats.failed_steps),
            (
                "edgecloud_pool_good_requests",
                f"Requests with the first token within {self.slo.ttft_s:g} s and the others within "
                f"{self.slo.tpot_s:g} s each.",
                self.num_good,
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=labels)
            counter.add_metric((self.model,), count)
            yield counter
        yield from self._by_label(stats)
        yield from self._facts()
        for distribution in (
            self.ttft, self.inter_token, self.per_token, self.e2e, self.queue, self.prefill, self.decode,
            self.inference, self.prompt_length, self.output_length, self.max_length, self.choices,
            self.iteration, self.cancel,
        ):  # fmt: skip
            yield distribution.family(self.model)

    def _facts(self) -> Iterator[Metric]:
        facts, config = self.facts, self._config
        info = InfoMetricFamily("vllm:cache_config", "Sizes and type of the KV memory.")
        sizes = {"block_size": str(config.block_size), "num_gpu_blocks": str(config.num_blocks)}
        info.add_metric((), {**sizes, "cache_dtype": facts.kv_type})
        yield info
        weights = GaugeMetricFamily(
            "edgecloud_pool_weight_bytes",
            "Weights by the form they are kept in, and those that came quantized and are not any more by the "
            "type they had in the file.",
            labels=("model_name", "form", "state"),
        )
        for state, forms in (("kept", facts.kept), ("converted", facts.converted)):
            for form, count in forms.items():
                weights.add_metric((self.model, form, state), count)
        yield weights

    def _by_label(self, stats: PoolStats) -> Iterator[Metric]:
        wasted = {"preempted": stats.recomputed_tokens, **self.wasted}
        remedies = {
            "swap": stats.swapped,
            "recompute": stats.recomputed,
            "keep": stats.kept,
            "refuse": stats.refused,
        }
        for name, text, label, counts in (
            ("vllm:request_success", "Requests by how they ended.", "finished_reason", dict(self.finished)),
            ("vllm:admission_rejections", "Requests refused at the door.", "reason", dict(self.rejected)),
            (
                "edgecloud_pool_wasted_tokens",
                "Tokens computed for nobody: twice, or for an answer that was not wanted to its end.",
                "reason",
                wasted,
            ),
            (
                "edgecloud_pool_block_shortages",
                "Steps in which a sequence lacked a block: another's were swapped or dropped, or it waited "
                "for one that is almost done, or for those of no lower rank.",
                "remedy",
                remedies,
            ),
        ):
            family = CounterMetricFamily(name, text, labels=("model_name", label))
            for reason, count in counts.items():
                family.add_metric((self.model, reason), count)
            yield family


def _seconds(name: str, text: str, bounds: tuple[float, ...]) -> Distribution:
    return Distribution(f"vllm:{name}_seconds", text, bounds)
