"""What we tell Prometheus, for operators: requests, answers, tokens, KV memory; no text and no key."""

from __future__ import annotations

import time
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from edgecloud.types import ChoiceDone, Done, Event, Finish, Health, Notice, Start

# The `_created` series doubles the text and tells nobody anything.
disable_created_metrics()  # type: ignore[no-untyped-call]


def _bounds(seconds: str) -> tuple[float, ...]:
    return tuple(map(float, seconds.split()))


# Seconds. Bounds as vLLM's, so that dashboards carry over.
_TTFT_BUCKETS = _bounds("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
_TOKEN_BUCKETS = _bounds("0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5")
_E2E_BUCKETS = _bounds("0.05 0.1 0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480")


class Metrics:
    """One registry of ours. Labels hold only what we chose: our route templates and the models that
    answered.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.in_flight = 0
        self._requests = Counter(
            "edgecloud_http_requests",
            "HTTP requests answered.",
            ("route", "status", "model"),
            registry=registry,
        )
        self._seconds = Histogram(
            "edgecloud_http_request_seconds",
            "From the request's headers to its last byte.",
            ("route",),
            registry=registry,
            buckets=_E2E_BUCKETS,
        )
        self._transport = Histogram(
            "edgecloud_http_transport_seconds",
            "What of a request's time was not the engine's: reading, rendering, sending.",
            ("route",),
            registry=registry,
            buckets=_TTFT_BUCKETS,
        )
        in_flight = Gauge(
            "edgecloud_http_requests_in_flight", "HTTP requests being answered now.", registry=registry
        )
        in_flight.set_function(lambda: self.in_flight)
        self._running = Gauge(
            "edgecloud_num_requests_running", "Sequences being computed.", registry=registry
        )
        self._waiting = Gauge(
            "edgecloud_num_requests_waiting", "Requests waiting for a place.", registry=registry
        )
        self._kv = {
            field: Gauge(f"edgecloud_{name}", help_text, ("model",), registry=registry)
            for field, name, help_text in (
                ("cells", "kv_cells", "KV cells of a loaded model; a cell holds one token."),
                ("used", "kv_cells_used", "KV cells in use."),
                (
                    "parked_bytes",
                    "prefix_parked_bytes",
                    "Main memory that keeps finished sequences for a next turn.",
                ),
                ("preemptions", "num_preemptions", "Sequences put back for want of KV room since the load."),
                ("saved", "prefixes_saved", "Computed prefixes that went to disk since the load."),
                ("saved_bytes", "prefix_saved_bytes", "Their size."),
                ("restored", "prefixes_restored", "Prefixes that came from disk since the load."),
                ("restored_bytes", "prefix_restored_bytes", "Their size."),
            )
        }
        labels = ("model",)
        self.prompt_tokens = Counter(
            "edgecloud_prompt_tokens", "Prompt tokens, cached ones included.", labels, registry=registry
        )
        self.cached_tokens = Counter(
            "edgecloud_cached_tokens", "Prompt tokens not computed again.", labels, registry=registry
        )
        self.generation_tokens = Counter(
            "edgecloud_generation_tokens", "Tokens generated.", labels, registry=registry
        )
        self.outcomes = Counter(
            "edgecloud_generations",
            "Generations by outcome: done, failed or cancelled.",
            ("model", "outcome"),
            registry=registry,
        )
        self.ttft = Histogram(
            "edgecloud_time_to_first_token_seconds",
            "From the request to the first token.",
            labels,
            registry=registry,
            buckets=_TTFT_BUCKETS,
        )
        self.inter_token = Histogram(
            "edgecloud_inter_token_latency_seconds",
            "Between two pieces of one answer.",
            labels,
            registry=registry,
            buckets=_TOKEN_BUCKETS,
        )
        self.per_token = Histogram(
            "edgecloud_time_per_output_token_seconds",
            "Mean seconds per token after the first, by answer.",
            labels,
            registry=registry,
            buckets=_TOKEN_BUCKETS,
        )
        self.e2e = Histogram(
            "edgecloud_e2e_request_latency_seconds",
            "From the request to the end of its answer.",
            labels,
            registry=registry,
            buckets=_E2E_BUCKETS,
        )
        self._request_children: dict[tuple[str, int, str], Counter] = {}
        self._generation_children: dict[str, _OfModel] = {}

    def count_request(
        self, route: str, status: int, model: str, seconds: float, transport_s: float | None = None
    ) -> None:
        """One HTTP answer. `route` is a template of ours or `unmatched`, `model` the one that answered or
        empty; `transport_s` the part of the seconds that was no engine's.
        """
        key = (route, status, model)
        child = self._request_children.get(key)
        if child is None:
            child = self._request_children[key] = self._requests.labels(route, str(status), model)
        child.inc()
        self._seconds.labels(route).observe(seconds)
        if transport_s is not None:
            self._transport.labels(route).observe(transport_s)

    def render(self, health: Health) -> bytes:
        """The Prometheus text format."""
        self._running.set(health.running)
        self._waiting.set(health.waiting)
        for field, gauge in self._kv.items():
            gauge.clear()
            for use in health.kv:
                gauge.labels(use.model).set(getattr(use, field))
        return generate_latest(self.registry)

    def generation(self) -> GenerationMeter:
        """A meter for one answer."""
        return GenerationMeter(self)

    def of_model(self, model: str) -> _OfModel:
        """What is booked of a model's answers: to look each up by its label takes longer than to count."""
        found = self._generation_children.get(model)
        if found is None:
            found = self._generation_children[model] = _OfModel(
                self.ttft.labels(model),
                self.inter_token.labels(model),
                self.per_token.labels(model),
                self.e2e.labels(model),
                self.prompt_tokens.labels(model),
                self.cached_tokens.labels(model),
                self.generation_tokens.labels(model),
                self.outcomes.labels(model, "done"),
            )
        return found


class _OfModel(NamedTuple):
    ttft: Histogram
    inter_token: Histogram
    per_token: Histogram
    e2e: Histogram
    prompt_tokens: Counter
    cached_tokens: Counter
    generation_tokens: Counter
    done: Counter


# The process's own; engines report here too.
metrics = Metrics()


class GenerationMeter:
    """Watches the events of one answer go by and books its latencies and tokens."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = time.perf_counter()
        self._first = 0.0
        self._last = 0.0
        self._model = ""
        self._done = False

    def see(self, event: Event | Done) -> None:
        """Book one event."""
        if isinstance(event, Start):
            self._model = event.model
            self._of_model = self._metrics.of_model(self._model)
        elif isinstance(event, Finish | Done):
            self._finish(event)
        elif not isinstance(event, ChoiceDone | Notice):
            now = time.perf_counter()
            if self._first == 0.0:
                self._first = now
                self._of_model.ttft.observe(now - self._began)
            else:
                self._of_model.inter_token.observe(now - self._last)
            self._last = now

    def _finish(self, event: Finish | Done) -> None:
        usage, now, of_model = event.usage, time.perf_counter(), self._of_model
        self._done = True
        of_model.prompt_tokens.inc(usage.prompt_tokens)
        of_model.cached_tokens.inc(usage.cached_tokens)
        of_model.generation_tokens.inc(usage.completion_tokens)
        of_model.e2e.observe(now - self._began)
        if usage.completion_tokens > 1 and self._first:
            of_model.per_token.observe((self._last - self._first) / (usage.completion_tokens - 1))
        of_model.done.inc()

    def close(self, *, cancelled: bool) -> None:
        """The stream is over; without a `Finish` before, it did not end well."""
        if self._model and not self._done:
            self._metrics.outcomes.labels(self._model, "cancelled" if cancelled else "failed").inc()
