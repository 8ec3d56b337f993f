"""The topology of a run, checked by mininet/boot.py before any part is made."""

import json
import subprocess
from pathlib import Path

from kofn.run.network import BOOT, SYSTEM_PYTHON
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config

TIMEOUT_S = 30.0


def wanted_topology(config: Config, source: Path, *, hosts: int, servers: int = 0) -> str:
    """Return the text of topology.json: the configured file's content, a star or a tree. ConfigError names file and
    field of a fault.

    The topology has `hosts` hosts for the workers, job by job, and then `servers` hosts for the parameter servers.
    """
    network = config.network
    path = None if network.topology is None else source.parent / network.topology
    argv = [str(SYSTEM_PYTHON), str(BOOT), *_asked(config, path, hosts + servers), "--management", network.management]
    result = subprocess.run(
        [*argv, "--write-topology", "/dev/stdout"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if result.returncode:
        detail = result.stderr.strip().removeprefix("boot.py: ").removeprefix(f"{path}: ")
        where = "" if detail.startswith("network.") or path is None else f"network.topology {path}: "
        raise ConfigError(f"{source}: {where}{detail}")
    made = json.loads(result.stdout)
    there, racks = len(made["hosts"]), max(1, len(made["switches"]) - 1)
    if racks != config.job.racks:
        raise ConfigError(
            f"{source}: network.topology {path} must have job.racks = {config.job.racks} racks, got {racks}"
        )
    if there != hosts + servers:
        workers = f"job.workers is {hosts}" if hosts == config.job.workers else f"job.workers of all jobs are {hosts}"
        raise ConfigError(
            f"{source}: network.topology {path} must have {hosts + servers} hosts ({workers}), one for each worker"
            + (f" and {servers} more for parameter servers" if servers else "")
            + f", got {there}"
        )
    return result.stdout


def _asked(config: Config, path: Path | None, hosts: int) -> list[str]:
    if path is not None:
        return ["--topology", str(path)]
    network = config.network
    racks = config.job.racks
    tree = ["--racks", str(racks), *_rate("--uplink-mbps", network.uplink_mbps)] if racks > 1 else []
    return ["--hosts", str(hosts), *_rate("--mbps", network.link_mbps), *tree]


def _rate(flag: str, mbps: float | None) -> list[str]:
    return [] if mbps is None else [flag, str(mbps)]
