"""The job and rank of this process, from its environment (docs/reference/pytorch.md)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kofn_common.numerals import is_numeral
from kofn_common.wire.packet import SERVICE
from kofn_host.errors import PlaceError
from kofn_host.worker.rendezvous import RENDEZVOUS, fetch
from kofn_host.worker.worker_place import WorkerPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """A worker's place: the job's configuration, the worker's rank, and all addresses.

    `metrics`: the file for JSON lines; `workers`: all workers' addresses on the data network, by rank, if the workers
    sum among themselves; `objective`: the controller's objective, if it differs from the configuration's objective.
    """

    config: Path
    rank: int
    controller: str
    address: str
    service: str
    interface: str
    metrics: Path
    certs: Path | None
    workers: tuple[str, ...] = ()
    objective: str = ""

    @classmethod
    def find(cls, group: tuple[int, int], environment: Mapping[str, str] = os.environ) -> Self:
        """Return the place of this process.

        `group`: the process's rank in the process group that trains the model, and the group's size.  In a group of one
        process the rank comes from KOFN_RANK.  PlaceError names the variable that is missing or wrong.
        """
        rank, size = group

        def needed(name: str, what: str) -> str:
            if not environment.get(name):
                raise PlaceError(f"{name} must be {what}, got nothing (kofn run --torch sets it)")
            return environment[name]

        given = environment.get("KOFN_RANK", "")
        if size == 1:
            rank = _number("KOFN_RANK", needed("KOFN_RANK", "this worker's rank, from 0"))
        elif given and _number("KOFN_RANK", given) != rank:
            raise PlaceError(f"KOFN_RANK must be the process group's rank, {rank}, got {given}")
        if RENDEZVOUS in environment:
            environment = fetch(rank, environment)
        certs = environment.get("KOFN_CERTS")
        return cls(
            config=Path(needed("KOFN_CONFIG", "the job's TOML file")),
            rank=rank,
            controller=needed("KOFN_CONTROLLER", "the controller's HOST:PORT"),
            address=needed("KOFN_ADDRESS", "this worker's address on the management network"),
            service=environment.get("KOFN_SERVICE") or SERVICE,
            interface=environment.get("KOFN_INTERFACE") or "",
            metrics=Path(needed("KOFN_METRICS", "a file for JSON lines, with the ledger beside it")),
            certs=Path(certs) if certs else None,
            workers=tuple(filter(None, environment.get("KOFN_WORKERS", "").split(","))),
            objective=environment.get("KOFN_OBJECTIVE", ""),
        )

    @property
    def worker(self) -> WorkerPlace:
        """The rank and all addresses."""
        return WorkerPlace(
            rank=self.rank,
            address=self.address,
            controller=self.controller,
            service=self.service,
            interface=self.interface,
            workers=self.workers,
        )


def _number(name: str, text: str) -> int:
    if not is_numeral(text):
        raise PlaceError(f"{name} must be a number from 0 on, got {text!r}")
    return int(text)
