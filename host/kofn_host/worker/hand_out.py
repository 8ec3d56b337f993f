"""Hands out a job to its workers on any hosts (rendezvous.py): configuration, controller, switch, certificate, token.

    python -m kofn_host.worker.hand_out mine.toml --controller 192.0.2.1:50052 --certs certs --at 192.0.2.1:29400

The command prints the two variables that every worker needs, and serves workers until it is stopped.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cryptography.fernet import Fernet

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.rpc.names import AUTHORITY, token_name, worker_name
from kofn_host.errors import PlaceError
from kofn_host.worker.rendezvous import KEY, RENDEZVOUS, Handout, Rendezvous, split


def handouts(config: Path, environment: Mapping[str, str], certs: Path | None) -> dict[int, Handout]:
    """Return the data for the job's workers, by rank; ConfigError if the configuration is invalid."""
    job, text = Config.load(config).job, config.read_text()
    return {
        rank: Handout(config=text, environment=dict(environment), certificates=_files(certs, job.id, rank))
        for rank in range(job.workers)
    }


def _files(certs: Path | None, job: int, rank: int) -> dict[str, bytes]:
    name = worker_name(job, rank)
    names = (AUTHORITY, f"{name}.pem", f"{name}.key", token_name(job)) if certs else ()
    return {name: (certs / name).read_bytes() for name in names if certs}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kofn_host.worker.hand_out", description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, help="the job's TOML file")
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    parser.add_argument("--at", required=True, metavar="HOST:PORT", help="the address at which workers fetch the job")
    parser.add_argument("--service", default="", metavar="IP", help="the switch's address, or the parameter server's")
    parser.add_argument("--certs", type=Path, metavar="FOLDER", help="the folder that `kofn certs` has made")
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="IP",
        help="a worker's address on the data network; once per worker, by rank",
    )
    given = parser.parse_args()
    environment = {
        "KOFN_CONTROLLER": given.controller,
        **({"KOFN_SERVICE": given.service} if given.service else {}),
        **({"KOFN_WORKERS": ",".join(given.worker)} if given.worker else {}),
    }
    key = os.environ.get(KEY) or Fernet.generate_key().decode()
    try:
        split(given.controller)
        server = Rendezvous(split(given.at), key, handouts(given.config, environment, given.certs))
    except (ConfigError, PlaceError, OSError, ValueError) as error:
        sys.exit(f"kofn_host.worker.hand_out: {error}")
    print(f"{RENDEZVOUS}={given.at}\n{KEY}={key}", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
