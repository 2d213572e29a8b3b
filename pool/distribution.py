"""Histograms that one thread fills and any thread reads, as the Prometheus client wants them.

Its own takes a lock for every value; the step loop has one for every token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily


class Distribution:
    """Counts values by upper bound. `name` is the metric's, without a suffix."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.text = text
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def total(self) -> int:
        return sum(self.counts)

    def family(self, model: str) -> HistogramMetricFamily:
        """As the client's registry collects it, labelled with the model's name."""
        so_far = 0
        buckets = []
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        for bound, count in zip(bounds, self.counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        family = HistogramMetricFamily(self.name, self.text, labels=("model_name",))
        family.add_metric((model,), buckets, self.sum)
        return family
