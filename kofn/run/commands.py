"""The command line of every process of a trial."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from kofn_common.config.job import JobSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.torch_script import TorchSection
from kofn_common.gso import coalesced_bytes
from kofn_common.results.folder import TrialFolder
from kofn_common.wire.packet import PORT
from kofn_switch.engine.faults import FaultRule
from kofn_switch.identity import BMV2

MASTER_PORT = 29500
"""The port where torchrun's workers meet: torchrun's default."""

ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),  # workers share this machine's cores
    **dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), ""),  # no proxy knows our addresses
    "PYTHONUNBUFFERED": "1",  # the log's end has the process's last words
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Command lines from the run's network and files; the same line restarts a process."""

    network: NetworkSection
    topology: Path
    certificates: Path | None
    """The folder of certificates; None for plaintext."""
    switches: int = 1
    """The number of switches: one, or the root and all leaves of a tree."""
    packets_port: int = PORT
    """The UDP port of the packets that faults and traces of a switch concern."""
    controller_address: str = ""
    """HOST:PORT for workers; empty: the controller's address in the management network."""

    def switch(
        self,
        interfaces: dict[str, str],
        *,
        number: int = 0,
        faults: Iterable[FaultRule] = (),
        fault_seed: int = 0,
        pcap: Path | None = None,
        counts: Path | None = None,
        slowest_mbps: float | None = None,
    ) -> list[str]:
        """Return a switch's command line; `number` is 0 for the only switch or the root, 1 + R for the leaf of rack R.

        The command line is the same for both targets; only the embedded switch can have faults and traces, and count in
        the file `counts`. `pcap` is the folder for the frames of the switch's links.
        `slowest_mbps`: the rate of the slowest link, which bounds the size of coalesced packets; None: not shaped.
        """
        embedded = self.network.target == "embedded"
        name = [sys.executable, "-m", "kofn_switch"] if embedded else [shutil.which(BMV2) or BMV2]
        ports = [part for port, name in sorted(interfaces.items()) for part in ("-i", f"{port}@{name}")]
        grpc_flags = ["--grpc-server-addr", self.p4runtime()[number], "--cpu-port", "255"]
        rules = [part for rule in faults for part in ("--fault", str(rule))]
        rules += ["--fault-seed", str(fault_seed), "--fault-udp-port", str(self.packets_port)] if rules else []
        if self.network.trace:
            rules += ["--trace", str(self.network.trace), "--trace-udp-port", str(self.packets_port)]
        rules += [f"--pcap={pcap.resolve()}"] if pcap is not None else []
        rules += [f"--counts={counts.resolve()}"] if counts is not None else []
        if embedded:
            rules += ["--gso", str(coalesced_bytes(slowest_mbps) if self.network.gso else 0)]
        device = str(self.network.device_id + number)
        return [*name, "--no-p4", *ports, *rules, "--device-id", device, "--", *grpc_flags]

    def controller(self, configs: Sequence[Path], entry: TrialFolder) -> list[str]:
        """Return the command line of a controller that listens for observers on the loopback, and for workers on the
        management network."""
        return [
            *(sys.executable, "-m", "kofn_controller"),
            *(part for config in configs for part in ("--config", str(config.resolve()))),
            *("--topology", str(self.topology.resolve())),
            *("--objective", entry.objective),
            *("--decisions", str(entry.decisions.resolve())),
            *(part for address in self.p4runtime() for part in ("--p4runtime", address)),
            *("--listen", self.loopback()),
            *("--listen", self.management()),
            *self._certs(),
        ]

    def worker(self, config: Path, rank: int, address: str, metrics: Path, more: Iterable[str] = ()) -> list[str]:
        """Return a worker's command line; `more` are further flags."""
        return [
            *(sys.executable, "-m", "kofn_host"),
            *("--config", str(config.resolve())),
            *("--rank", str(rank)),
            *("--controller", self.management()),
            *("--address", address),
            *("--metrics", str(metrics.resolve())),
            *more,
            *self._certs(),
        ]

    def alone(self, config: Path, metrics: Path) -> list[str]:
        """Return the command line of one worker that trains without a network."""
        module = [sys.executable, "-m", "kofn_host.training.alone"]
        return [*module, "--config", str(config.resolve()), "--metrics", str(metrics.resolve())]

    def torchrun(self, torch: TorchSection, rank: int, workers: int, master: str) -> list[str]:
        """Return the command line of a worker's script; workers of one process group meet at the address `master`."""
        together = torch.group == "job"
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", str(workers if together else 1)),
            *("--node-rank", str(rank if together else 0)),
            *("--nproc-per-node", "1"),
            *("--master-addr", master if together else "127.0.0.1"),
            *("--master-port", str(MASTER_PORT)),
            *("--max-restarts", str(torch.max_restarts)),
            *(str(torch.script), *torch.arguments),
        ]

    def torch_environment(self, config: Path, rank: int, interface: str, address: str, metrics: Path) -> dict[str, str]:
        """Return the environment for kofn_host.worker.JobPlace at a host; gloo uses the data network."""
        return {
            "KOFN_CONFIG": str(config.resolve()),
            "KOFN_RANK": str(rank),
            "KOFN_CONTROLLER": self.management(),
            "KOFN_ADDRESS": address,
            "KOFN_METRICS": str(metrics.resolve()),
            "KOFN_CERTS": "" if self.certificates is None else str(self.certificates.resolve()),
            "GLOO_SOCKET_IFNAME": interface,
        }

    def server(self, module: str, job: JobSection, address: str, workers: Sequence[str], k: int) -> list[str]:
        """Return the command line of a parameter server at `address`; `workers` are the workers' addresses."""
        return [
            *(sys.executable, "-m", module),
            *("--address", address),
            *(part for worker in workers for part in ("--worker", worker)),
            *("--k", str(k)),
            *("--job", str(job.id)),
            *("--slots", str(job.slots)),
            *(["--switch-segments"] if self.network.coalesced else []),
        ]

    def management(self) -> str:
        """Return the controller's address for workers. The root namespace has the first address of the management
        network."""
        first = ip_network(self.network.management)[1]
        return self.controller_address or f"{first}:{self.network.controller_port}"

    def p4runtime(self) -> list[str]:
        """Return the address of each switch's P4Runtime server."""
        return [f"127.0.0.1:{port}" for port in self.network.p4runtime_ports(self.switches)]

    def loopback(self) -> str:
        """Return the controller's address for observers."""
        return f"127.0.0.1:{self.network.controller_port}"

    def _certs(self) -> list[str]:
        return [] if self.certificates is None else ["--certs", str(self.certificates.resolve())]
