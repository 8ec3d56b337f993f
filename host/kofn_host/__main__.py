"""`python -m kofn_host`: one worker, inside its host's network namespace."""

import gc
import logging
import sys
from pathlib import Path

import click

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import place_of
from kofn_common.config.schema import Config
from kofn_common.extras import remedy
from kofn_common.rpc.errors import SecurityError
from kofn_common.wire.packet import SERVICE
from kofn_host.collectives.check import check_collective
from kofn_host.errors import HostError
from kofn_host.worker.run import work
from kofn_host.worker.worker_place import WorkerPlace

OBJECTS = 50_000
"""Allocations between two garbage collections: packets consist of many objects, none of which is in a cycle."""


@click.command(
    epilog="Example: python -m kofn_host --config run.toml --rank 0 --controller 172.30.255.1:50052 "
    "--address 172.30.255.2 --metrics worker-0.jsonl"
)
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True, help="The run's TOML file.")
@click.option("--rank", type=click.IntRange(min=0), required=True, help="This worker's rank, from 0.")
@click.option("--controller", required=True, metavar="HOST:PORT", help="The controller's gRPC address.")
@click.option("--address", required=True, help="This worker's own address on the management network.")
@click.option(
    "--service",
    default=SERVICE,
    show_default=True,
    help="The switch's service address, or the parameter server's.",
)
@click.option("--interface", default="", help="The interface towards --service.  [default: by the routes]")
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="ADDRESS",
    help="A worker's address on the data network, once per worker, by rank; for collectives between workers.",
)
@click.option(
    "--metrics",
    type=click.Path(path_type=Path),
    required=True,
    help="File of JSON lines; the ledger file is put beside it.",
)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    help="Folder of the job's checkpoints, the same for all workers; resume at the newest one.",
)
@click.option(
    "--certs",
    type=click.Path(path_type=Path),
    help="Folder of certificates (kofn certs); without it connections are plaintext.",
)
def main(
    config_path: Path,
    rank: int,
    controller: str,
    address: str,
    service: str,
    interface: str,
    workers: tuple[str, ...],
    metrics: Path,
    checkpoints: Path | None,
    certs: Path | None,
) -> None:
    """Run one worker of a job: train on its shard and aggregate as job.collective says.

    `kofn run` starts it in each host of the topology. A killed worker that is restarted with the same arguments
    continues its training, except where workers sum among themselves: such a job ends with the first lost worker.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    gc.freeze()  # the objects of the imports are permanent
    gc.set_threshold(OBJECTS)
    try:
        config = Config.load(config_path)
        if rank >= config.job.workers:
            raise ConfigError(f"--rank must be 0 to {config.job.workers - 1} (job.workers - 1), got {rank}")
        check_collective(config)
        if not load_collective(config.job.collective).ledger and len(workers) != config.job.workers:
            raise ConfigError(f"--worker must be given {config.job.workers} times (job.workers), got {len(workers)}")
        place = WorkerPlace(
            rank=rank,
            address=address,
            controller=controller,
            service=service,
            interface=interface,
            workers=workers,
        )
        logging.info("worker %d: %s", rank, work(config, place, metrics, certs, checkpoints))
    except ModuleNotFoundError as error:
        sys.exit(f"kofn worker {rank}: {remedy(error)}{place_of(error)}")
    except (HostError, SecurityError, ConfigError, OSError) as error:
        sys.exit(f"kofn worker {rank}: {error}{place_of(error)}")


if __name__ == "__main__":
    main()
