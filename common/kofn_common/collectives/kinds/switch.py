"""The switch, with the controller that chooses its k."""

from kofn_common.collectives.job_collective import JobCollective
from kofn_common.wire.packet import PORT


class Switch(JobCollective):
    """The switch sums passing packets; a result uses each link once."""

    ks = "any"
    ledger = True
    counts_packets = True
    faults = ("host", "switch", "uplink")
    restarts = ("switch", "worker")
    simulated = True
    port = PORT

    @classmethod
    def busiest_bytes(cls, gradient_bytes: int, workers: int) -> float:
        return gradient_bytes


switch = Switch
