"""A parameter server: workers use it like the switch, which only forwards these packets."""

from kofn_common.collectives.job_collective import JobCollective


class Server(JobCollective):
    """A server with a fixed k; the server takes no part in regrouping, so it cannot be restarted."""

    ks = "fixed"
    ledger = True
    counts_packets = True
    faults = ("host",)
    restarts = ("worker",)
    simulated = True
    server = "kofn_host.collectives.parameter_server"

    @classmethod
    def busiest_bytes(cls, gradient_bytes: int, workers: int) -> float:
        """Return the bytes of all workers' gradients, because the workers share the server's link."""
        return workers * gradient_bytes


server = Server
