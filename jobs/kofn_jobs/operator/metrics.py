"""Prometheus' counters of an operator."""

from prometheus_client import CollectorRegistry, Counter


class OperatorMetrics:
    """Counters in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.phases = Counter("kofn_jobs_phases", "Requests that entered a phase.", ["phase"], registry=self.registry)
        self.actions = Counter("kofn_jobs_actions", "Actions for requests.", ["action"], registry=self.registry)
