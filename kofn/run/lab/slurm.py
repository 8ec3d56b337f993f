"""The nodes of a Slurm allocation as a laboratory.

The nodes share the file system with the checkout, and srun runs on them what ssh runs on other machines. The node of
`kofn run` has the switch; so the controller and the switch are at this node's loopback, and no port is forwarded.
"""

import os
import socket
import subprocess
from pathlib import Path

from kofn.run.lab.lab_file import Lab, LabMachine
from kofn_common.config.errors import ConfigError

JOB, NODES, HERE = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURMD_NODENAME"
"""Variables that Slurm sets in an allocation: the job, its nodes, and the node of the process."""


def allocation() -> Lab:
    """Return the laboratory of the allocation that this process is in. ConfigError if it is in none."""
    for variable in (JOB, NODES, HERE):
        if variable not in os.environ:
            raise ConfigError(f"--slurm needs a Slurm allocation, sbatch or salloc, got no {variable}")
    names = _scontrol("show", "hostnames", os.environ[NODES]).split()
    here = os.environ[HERE]
    if len(names) < 2 or here not in names:
        raise ConfigError(f"--slurm needs an allocation of two nodes or more with this one, got {', '.join(names)}")
    others = {name: _address(name) for name in names if name != here}
    machines = [LabMachine(host=here, address=_own_address(next(iter(others.values()))), switch=True, through="srun")]
    machines += [LabMachine(host=name, address=address, through="srun") for name, address in others.items()]
    return Lab(source=Path(f"Slurm job {os.environ[JOB]}"), machines=tuple(machines))


def _address(node: str) -> str:
    """Return a node's address as Slurm reaches it."""
    fields = dict(field.partition("=")[::2] for field in _scontrol("show", "node", "--oneliner", node).split())
    try:
        return socket.gethostbyname(fields.get("NodeAddr", node))
    except OSError as error:
        raise ConfigError(f"the address of node {node} must be known here: {error.strerror or error}") from error


def _own_address(peer: str) -> str:
    """Return this node's address towards another node: its own name may be at the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 1))
        return str(probe.getsockname()[0])


def _scontrol(*words: str) -> str:
    try:
        return subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise ConfigError("--slurm needs the command scontrol on the PATH") from None
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"scontrol {' '.join(words)}: {error.stderr.strip()}") from None
