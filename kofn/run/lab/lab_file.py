"""The file of a laboratory: its machines, and which processes of a run each of them has.

[[machine]]
host = "switch1"            # as ssh knows it; "localhost": this machine, without ssh
switch = true
address = "192.0.2.1"       # its address in the network that carries the job's packets
[[machine]]
host = "node1"
address = "192.0.2.11"
workers = [0, 1]            # without this key, machines without a switch share the workers
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from kofn_common.collectives.job_collective import servers_of
from kofn_common.config.errors import ConfigError
from kofn_common.config.refusals import refusal
from kofn_common.config.schema import Config
from kofn_common.config.section import Section

HOST = re.compile(r"[A-Za-z0-9_][\w.@:%-]*")
HERE = "localhost"
"""The host that is this machine, reached without ssh."""


class LabMachine(Section, frozen=True):
    """A machine of a laboratory."""

    host: str  # as ssh knows it
    address: str  # its IPv4 address for the job's packets
    switch: bool = False  # has the switch; in a tree, the root
    leaves: tuple[Annotated[int, Meta(ge=0)], ...] = ()  # in a tree, the racks whose leaf switches it has
    workers: tuple[Annotated[int, Meta(ge=0)], ...] | None = None  # the ranks of its workers; None: its share
    server: bool = False  # has the parameter servers; without one, the switch's machine has them
    python: str | None = None  # its Python with kofn's packages; None: kofn lab setup makes an environment
    through: Literal["ssh", "srun"] = "ssh"  # srun: in a Slurm allocation, whose nodes share this checkout's folder

    @property
    def shares_checkout(self) -> bool:
        """Whether the machine has this very checkout: it is this machine, or shares its files."""
        return self.host == HERE or self.through == "srun"

    def check(self) -> None:
        """Check that ssh takes the host for a host, and that the address is one."""
        if not HOST.fullmatch(self.host):
            raise ConfigError(f"machine.host must be a name for ssh, user@node1 for example, got {self.host!r}")
        try:
            IPv4Address(self.address)
        except ValueError as error:
            raise ConfigError(f"machine.address of {self.host} must be an IPv4 address: {error}") from error


class LabFile(Section, frozen=True):
    """The content of a laboratory's file."""

    machine: tuple[LabMachine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The machines of a laboratory, checked."""

    source: Path
    machines: tuple[LabMachine, ...]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a laboratory's file. ConfigError names the field that is wrong."""
        try:
            document = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: not TOML: {error}") from error
        try:
            return cls.of(document, path)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def of(cls, document: dict[str, Any], source: Path) -> Self:
        """Check a document, as load() does a file."""
        try:
            machines = msgspec.convert(document, LabFile).machine
        except msgspec.ValidationError as error:
            raise refusal(error, document, LabFile) from error
        for machine in machines:
            machine.check()
        if (count := sum(machine.switch for machine in machines)) != 1:
            raise ConfigError(f"machine.switch must be true for one machine, the switch's, got {count}")
        if sum(machine.server for machine in machines) > 1:
            raise ConfigError("machine.server must be true for one machine at most")
        for field in ("host", "address"):
            _check_unique(field, [getattr(machine, field) for machine in machines])
        return cls(source=source, machines=machines)

    @property
    def switch(self) -> LabMachine:
        """The machine of the switch; in a tree, of the root."""
        return next(machine for machine in self.machines if machine.switch)

    def placed(self, configs: Sequence[Config]) -> "Placed":
        """Return which machine has which nodes of the topology. ConfigError if a node has no machine, or two."""
        if configs[0].network.target != "embedded":
            raise ConfigError(f"network.target must be 'embedded' in a laboratory, got {configs[0].network.target!r}")
        workers, racks = sum(config.job.workers for config in configs), configs[0].job.racks
        servers = servers_of(config.job.collective for config in configs)
        shares = _shares(self.machines, workers)
        server = next((machine for machine in self.machines if machine.server), self.switch)
        places = {f"h{workers + number + 1}": server for number in range(servers)}
        for machine, ranks in zip(self.machines, shares, strict=True):
            places |= {f"h{rank + 1}": machine for rank in ranks}
        if racks == 1:
            if found := next((machine for machine in self.machines if machine.leaves), None):
                raise ConfigError(f"machine.leaves of {found.host} must be empty with job.racks = 1")
            return Placed(nodes=places | {"s1": self.switch})
        leaves = [rack for machine in self.machines for rack in machine.leaves]
        if sorted(leaves) != list(range(racks)):
            raise ConfigError(
                f"machine.leaves of all machines must be each rack from 0 to {racks - 1} once, got {leaves}"
            )
        of_leaf = {f"s{rack + 1}": machine for machine in self.machines for rack in machine.leaves}
        return Placed(nodes=places | {"s0": self.switch} | of_leaf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The machine of each node of a run's topology."""

    nodes: dict[str, LabMachine]

    def on(self, machine: LabMachine) -> list[str]:
        """Return the nodes that a machine has."""
        return [node for node, other in self.nodes.items() if other is machine]

    def elsewhere(self, machine: LabMachine) -> dict[str, str]:
        """Return the addresses of the machines of all other nodes."""
        return {node: other.address for node, other in self.nodes.items() if other is not machine}

    @property
    def switches(self) -> list[str]:
        """The only switch, or a tree's root and its leaves, by rack."""
        return sorted((node for node in self.nodes if node.startswith("s")), key=lambda node: int(node[1:]))

    @property
    def machines(self) -> list[LabMachine]:
        """The machines that have a node, each once."""
        return list({machine.host: machine for machine in self.nodes.values()}.values())


def _shares(machines: Sequence[LabMachine], workers: int) -> list[Sequence[int]]:
    """Return each machine's ranks: those that it names, or its share of the ranks that no machine names."""
    named = [rank for machine in machines for rank in machine.workers or ()]
    _check_unique("workers", named)
    if named and max(named) >= workers:
        raise ConfigError(f"machine.workers must be ranks below job.workers = {workers}, got {max(named)}")
    left = [rank for rank in range(workers) if rank not in named]
    sharing = [machine for machine in machines if machine.workers is None and not machine.switch]
    if left and not sharing:
        raise ConfigError(f"machine.workers must name every rank below job.workers = {workers}, got no {left[0]}")
    bounds = [len(left) * place // len(sharing) for place in range(len(sharing) + 1)] if sharing else []
    shares = {machine.host: left[begin:end] for machine, begin, end in zip(sharing, bounds, bounds[1:], strict=False)}
    return [shares.get(machine.host, machine.workers or ()) for machine in machines]


def _check_unique(field: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"machine.{field} must differ between machines, got {value!r} twice")
