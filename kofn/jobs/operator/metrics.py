"""Prometheus' counters of an operator."""

from prometheus_client import CollectorRegistry, Counter


class OperatorMetrics:
    """In a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.phases = Counter("kofn_jobs_phases", "Requests that came to a phase.", ["phase"], registry=self.registry)
        self.actions = Counter("kofn_jobs_actions", "What was done for requests.", ["action"], registry=self.registry)
