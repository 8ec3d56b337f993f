"""A worker's rank and addresses."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """A worker's rank and addresses.

    `address`: this worker's address on the management network; `service`: the address of the switch or the parameter
    server; `interface`: the interface towards `service` (empty: by the routes); `workers`: all workers' addresses on
    the data network, by rank, if the workers sum among themselves.
    """

    rank: int
    address: str
    controller: str
    service: str
    interface: str = ""
    workers: tuple[str, ...] = ()
