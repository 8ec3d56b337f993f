"""A Slurm cluster of a laboratory's machines: the first has slurmctld, each has slurmd, and munge proves who asks."""

import os
import shutil
import subprocess

from tests.lab.machines import Laboratory, Machine, wait_for

CONFIG = """
ClusterName=kofn
SlurmctldHost={control}
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/var/tmp/slurmctld
SlurmdSpoolDir=/var/tmp/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

PREPARED = """
mount --bind "$1" /etc/hosts
mkdir -p /run/munge /var/tmp/slurmd /var/tmp/slurmctld
mount -t tmpfs tmpfs /sys/fs/cgroup  # slurmd looks for it, though it needs no group
install -m 400 "$2" /run/munge.key
munged --force --key-file=/run/munge.key --pid-file=/run/munge.pid --seed-file=/run/munge.seed \\
    --log-file=/run/munge.log --socket=/run/munge/munge.socket.2
"""

TOOLS = ("slurmctld", "slurmd", "munged", "sbatch")


def missing_slurm() -> str | None:
    """Return which tool of Slurm is missing; None if all are here."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is missing (apt packages slurm-wlm, munge)"
    return None


class Slurm:
    """The cluster; its machines have names for each other in /etc/hosts."""

    def __init__(self, lab: Laboratory) -> None:
        self.lab, self._machines = lab, [*lab.machines.values()]
        self.config = lab.folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons, and wait until all nodes are idle."""
        nodes = "\n".join(
            f"NodeName={each.name} NodeAddr={each.address} CPUs={os.cpu_count()} State=UNKNOWN"
            for each in self._machines
        )
        self.config.write_text(CONFIG.format(control=f"{self.control.name}({self.control.address})", nodes=nodes))
        (self.lab.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key, hosts = self.lab.folder / "munge.key", self.lab.folder / "hosts"
        key.write_bytes(os.urandom(128))
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{m.address} {m.name}\n" for m in self._machines))
        for machine in self._machines:
            machine.run("sh", "-ec", PREPARED, "sh", str(hosts), str(key))
        self._daemon(self.control, "slurmctld")
        for machine in self._machines:
            self._daemon(machine, "slurmd", "-N", machine.name)
        wait_for(lambda: self._idle() == len(self._machines), "idle nodes")

    @property
    def control(self) -> Machine:
        return self._machines[0]

    def run(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of Slurm on the first machine."""
        inside = self.control.inside
        own = {name: value for name, value in os.environ.items() if name != "KOFN_STATE_DIR"}  # the machine has its own
        environment = {**own, "SLURM_CONF": str(self.config)}
        place = ["nsenter", "--all", "--target", str(inside), "--wd=/tmp"]
        return subprocess.run([*place, *argv], env=environment, capture_output=True, text=True, check=False)

    def _daemon(self, machine: Machine, *argv: str) -> None:
        log = self.lab.folder / f"{machine.name}-{argv[0]}.log"
        place = ["nsenter", "--all", "--target", str(machine.inside)]
        with log.open("wb") as output:
            self._daemons.append(
                subprocess.Popen([*place, *argv, "-D", "-f", str(self.config)], stdout=output, stderr=output)
            )

    def end(self) -> None:
        """Wait for the daemons of machines that have ended."""
        for daemon in self._daemons:
            daemon.wait(10)

    def _idle(self) -> int:
        return self.run("sinfo", "--noheader", "--Node", "--format=%t").stdout.split().count("idle")
