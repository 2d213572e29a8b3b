"""What the router does, for Prometheus: attempts and money by engine, which addresses rest, and what the
embedder takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from ..gateway import Gateway
from ..run import Closing

NANO = 1e9


@runtime_checkable
class CountsPasses(Protocol):
    """An embedder that says how often its model ran, and for how many seconds in all."""

    name: str
    num_passes: int
    pass_s: float


class RouterMetrics(Collector):
    """Counts every request that a gateway closes; asked by Prometheus, looks at addresses and embedders."""

    def __init__(self, gateway: Gateway, registry: CollectorRegistry) -> None:
        self._gateway = gateway
        self._attempts = Counter(
            "edgecloud_attempts",
            "Engines asked for an answer, by how that ended.",
            ("engine", "outcome"),
            registry=registry,
        )
        self._cost = Counter("edgecloud_cost", "Money spent.", ("engine", "currency"), registry=registry)
        registry.register(self)
        gateway.watchers.append(self.closed)

    def closed(self, closing: Closing) -> None:
        """Take in a request that is over."""
        for tried in closing.tried:
            self._attempts.labels(tried.engine, tried.outcome).inc()
            if tried.nano:
                self._cost.labels(tried.engine, closing.receipt.currency).inc(tried.nano / NANO)

    def collect(self) -> Iterator[Metric]:
        """1 for each address that is left alone after failures, 0 for the others; the passes of embedders."""
        family = GaugeMetricFamily(
            "edgecloud_address_resting",
            "Whether an address is left alone after failures.",
            labels=("engine", "address"),
        )
        for engine, address, is_resting in self._gateway.resting():
            family.add_metric((engine, address), float(is_resting))
        yield family
        passes = SummaryMetricFamily(
            "edgecloud_embedding_pass_seconds",
            "Passes of an embedder, each of one text or of several that came together.",
            labels=("model",),
        )
        for embedder in self._gateway.catalog.embedders():
            if isinstance(embedder, CountsPasses):
                passes.add_metric([embedder.name], embedder.num_passes, embedder.pass_s)
        yield passes
