"""A parameter server: workers speak to it as to the switch, which only forwards these packets."""

from kofn.host.collectives.job_collective import JobCollective


class Server(JobCollective):
    """One k from its start to its end; takes part in no regroup, so it cannot be started again."""

    ks = "fixed"
    ledger = True
    faults = ("host",)
    restarts = ("worker",)
    server = True

    @classmethod
    def busiest_bytes(cls, gradient_bytes: int, workers: int) -> float:
        """All over its own link."""
        return workers * gradient_bytes


server = Server
