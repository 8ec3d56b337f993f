"""`python -m host`: one worker, inside its host's network namespace."""

import logging
import sys
from pathlib import Path

import click

from host.errors import HostError
from host.worker import Place, work
from rpc.errors import SecurityError
from run.collectives import check_collective
from run.config import PEER_TO_PEER, Config
from run.errors import ConfigError


@click.command(
    epilog="Example: python -m host --config run.toml --rank 0 --controller 172.30.255.1:50052 "
    "--address 172.30.255.2 --metrics worker-0.jsonl"
)
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True, help="The run's TOML file.")
@click.option("--rank", type=click.IntRange(min=0), required=True, help="This worker's rank, from 0.")
@click.option("--controller", required=True, metavar="HOST:PORT", help="The controller's gRPC address.")
@click.option("--address", required=True, help="This worker's own address on the management network.")
@click.option(
    "--service",
    default="10.0.0.254",
    show_default=True,
    help="The switch's service address, or the parameter server's.",
)
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="ADDRESS",
    help="A worker's address on the data network; once for each, by rank, where job.collective is ring or gloo.",
)
@click.option("--metrics", type=click.Path(path_type=Path), required=True, help="JSON lines go here, the books beside.")
@click.option("--certs", type=click.Path(path_type=Path), help="Certificates (kofn certs); plaintext without.")
def main(
    config_path: Path,
    rank: int,
    controller: str,
    address: str,
    service: str,
    workers: tuple[str, ...],
    metrics: Path,
    certs: Path | None,
) -> None:
    """One worker of a job: trains on its shard and aggregates as job.collective says.

    Started by `kofn run` in each host of the topology. Killed and started again the same way, it goes on where it was;
    not with ring or gloo, which end with the first worker that is gone.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = Config.load(config_path)
        if rank >= config.job.workers:
            raise ConfigError(f"--rank is {rank}: 0 to {config.job.workers - 1} (job.workers - 1) is allowed")
        check_collective(config)
        if config.job.collective in PEER_TO_PEER and len(workers) != config.job.workers:
            raise ConfigError(f"--worker is given {len(workers)} times: job.workers, {config.job.workers}, are needed")
        place = Place(rank=rank, address=address, controller=controller, service=service, workers=workers)
        logging.info("worker %d: %s", rank, work(config, place, metrics, certs))
    except (HostError, SecurityError, ConfigError, OSError) as error:
        sys.exit(f"kofn worker {rank}: {error}")


if __name__ == "__main__":
    main()
