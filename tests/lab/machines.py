"""Machines of a laboratory on one machine: they share the processor and the read files, and nothing else.

Each has its own network, mount, process, host-name and time namespaces, its own /tmp, /run and home, its own OpenSSH
server and, if wanted, clocks that are wrong. Their links meet at a bridge in the network namespace of the runner.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNNER = "198.18.77.254"
"""The runner's address in the laboratory's network (of RFC 2544's range for tests)."""

MTU = "9100"
STAYS = ("lock", "running")
"""Empty files in the folder of states, which every run uses."""

NATIVE = Path(os.environ.get("KOFN_CACHE") or Path.home() / ".cache" / "kofn")
START_S, RUN_S = 20.0, 120.0
GONE_S = 10.0
"""Everything of a run is gone from all machines after this time."""

MACHINE = r"""
set -e
name=$1 address=$2 config=$3; shift 3
hostname "$name"
kept=()
exec {native}<"$1"; shift
for folder in "$@"; do exec {descriptor}<"$folder"; kept+=("$descriptor"); done
for folder in /tmp /var/tmp /run /root; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
chmod 755 /run; chmod 700 /root; mkdir /run/sshd /run/native
mount --no-canonicalize --bind "/proc/self/fd/$native" /run/native; exec {native}<&-
for descriptor in "${kept[@]}"; do
    [ -d "$1" ] || { mkdir -p "$1"; mount --no-canonicalize --bind "/proc/self/fd/$descriptor" "$1"; }
    eval "exec $descriptor<&-"; shift
done
install -m 644 "$(dirname "$config")/key.pub" /run/authorized_keys
cp -p /etc/passwd /etc/group /etc/shadow /run
[ ! -e /etc/sudoers ] || { cp -p /etc/sudoers /run; echo "admin ALL=(ALL) NOPASSWD: ALL" >>/run/sudoers; }
for user in student:4321 admin:4322; do
    echo "${user%:*}:x:${user#*:}:${user#*:}::/run/home-${user%:*}:/bin/bash" >>/run/passwd
    echo "${user%:*}:x:${user#*:}:" >>/run/group
    echo "${user%:*}:*:19000:0:99999:7:::" >>/run/shadow
    install -d -o "${user#*:}" -g "${user#*:}" "/run/home-${user%:*}"
done
for file in passwd group shadow sudoers; do [ ! -e "/run/$file" ] || mount --bind "/run/$file" "/etc/$file"; done
mknod -m 666 /run/tun c 10 200; mkdir -p /dev/net; [ ! -e /dev/net/tun ] || mount --bind /run/tun /dev/net/tun
until ip link set lab0 up 2>/dev/null; do sleep 0.05; done
ip link set lo up
ip address add "$address/24" dev lab0
exec /usr/sbin/sshd -D -e -f "$config"
"""
"""Makes a machine: `bash -c MACHINE machine NAME ADDRESS SSHD_CONFIG NATIVE FOLDER...`.

The folders stay visible, and NATIVE, root's cache of compiled code, so that tests wait for no compiler. Beside root
there are the users `student`, who may do nothing as root, and `admin`, who may use sudo.
"""

FRESH = r"""
set -e
name=$1 address=$2 lower=$3 files=$4
hostname "$name"
until ip link set lab0 up 2>/dev/null; do sleep 0.05; done
ip link set lo up
ip address add "$address/24" dev lab0
cd "$files/root"
mount -t overlay -o "volatile,lowerdir=$lower,upperdir=$files/upper,workdir=$files/work" overlay .  # without fsync
cd "$files/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
for folder in dev/shm tmp run; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
chmod 755 run; mkdir run/sshd
pivot_root . mnt
cd /
umount -l mnt
exec env -i PATH="$PATH" /usr/sbin/sshd -D -e -f /etc/ssh/laboratory/sshd
"""
"""Makes a machine with other root file systems: `bash -c FRESH machine NAME ADDRESS LOWER FILES`. LOWER are the
folders of the file system, FILES has what the machine changes."""


FRESH_SSHD = """
HostKey /etc/ssh/laboratory/key
AuthorizedKeysFile /etc/ssh/laboratory/key.pub
StrictModes no
UsePAM no
PidFile none
"""


def missing() -> str | None:
    """Return why there can be no such machines here; None if there can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool, package in (("/usr/sbin/sshd", "openssh-server"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} is missing (apt package {package})"
    return None


def ip(*words: str, inside: str | None = None) -> None:
    """Run `ip`, in a named network namespace if one is given."""
    place = ["-n", inside] if inside else []
    subprocess.run(["ip", *place, *words], check=True, capture_output=True)


@dataclass
class Machine:
    """A machine that runs."""

    name: str
    address: str
    process: "subprocess.Popen[bytes]"

    def run(self, *argv: str) -> str:
        """Run a command on the machine as root, not through ssh; return its output."""
        return subprocess.run(
            ["nsenter", "--all", "--target", str(self.inside), *argv], check=True, capture_output=True, text=True
        ).stdout

    @property
    def inside(self) -> int:
        """The process id of the machine's first process, as this machine knows it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def processes(self) -> list[str]:
        """Return the command lines of all processes on the machine but its ssh server and this question."""
        lines = self.run("ps", "-eo", "args=").splitlines()
        return [line for line in lines if "sshd" not in line and not line.startswith("ps ")]

    def leftovers(self) -> list[str]:
        """Return processes, interfaces and files of runs that are on the machine."""
        if self.process.poll() is not None:
            return []
        listed = self.run("sh", "-c", "ls /root/.cache/kofn/lab/runs /run/kofn 2>/dev/null || true").split()
        files = [name for name in listed if not name.endswith(":") and name not in STAYS]
        argv = ["nsenter", f"--net=/proc/{self.inside}/ns/net", "ip", "-o", "link"]  # a fresh machine has no `ip`
        links = [line.split(":")[1].strip() for line in _output(*argv).splitlines()]
        return [*self.processes(), *(link for link in links if link != "lo" and not link.startswith("lab0")), *files]

    def vanish(self) -> None:
        """End as by a power cut: all processes at once, and the network with them."""
        with suppress(OSError, IndexError):  # it has ended already
            os.kill(self.inside, signal.SIGKILL)
        self.process.wait()


@dataclass
class Laboratory:
    """Machines, by name, and what reaches them."""

    folder: Path
    network: str
    """The network namespace of the runner."""
    machines: dict[str, Machine] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End the machines, and the ways out."""
        for name, machine in self.machines.items():
            machine.vanish()
            shutil.rmtree(self.folder / f"{name}.files", ignore_errors=True)  # hundreds of MB
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a runner: its ssh knows the machines, its state is its own."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "KOFN_STATE_DIR": str(self.folder / "state")}

    def file(self, *, python: str | None = sys.executable, user: str = "root", names: Sequence[str] = ()) -> Path:
        """Write the laboratory's file: the first machine has the switch, the others share the workers. By default it
        has all machines."""
        own = f"python = {python!r}\n" if python else ""
        tables = [
            f"[[machine]]\nhost = {f'{user}@{machine.name}'!r}\naddress = {machine.address!r}\n{own}"
            + ("switch = true\n" if number == 0 else "")
            for number, machine in enumerate(self.machines[name] for name in names or self.machines)
        ]
        path = self.folder / f"{'-'.join([user, *names])}.toml"
        path.write_text("\n".join(tables))
        return path

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs a command where the runner is."""
        return ["ip", "netns", "exec", self.network, *argv]

    def kofn(
        self, *arguments: str, timeout_s: float = 200.0, state: str = "state"
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of kofn as the runner does, with its own folder of states."""
        argv = self.command(str(Path(sys.executable).with_name("kofn")), *arguments)
        return subprocess.run(
            argv,
            cwd=self.folder,
            env={**self.environment, "KOFN_STATE_DIR": str(self.folder / state)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def begin(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Begin a command of kofn as the runner does; its output goes to the file `output`."""
        argv = [str(Path(sys.executable).with_name("kofn")), *arguments]
        with (self.folder / "output").open("wb") as output:
            # not by `ip netns exec`: signals must reach the command
            return subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.network}", *argv],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
            )

    def until(self, true: Callable[[], bool], what: str, run: "subprocess.Popen[bytes]") -> None:
        """Wait until something happens in a run."""
        deadline = time.monotonic() + RUN_S
        while not true():
            assert run.poll() is None, (self.folder / "output").read_text()
            assert time.monotonic() < deadline, f"{what} did not come within {RUN_S:.0f} s"
            time.sleep(0.1)

    def cut(self, name: str) -> None:
        """Cut a machine's cable."""
        ip("link", "set", f"port{name.removeprefix('machine')}", "down", inside=self.network)

    def leftovers(self) -> dict[str, list[str]]:
        """Return what runs have left on machines that live, by machine, ten seconds after they should be gone."""
        deadline = time.monotonic() + GONE_S
        while (left := {name: found for name, machine in self.machines.items() if (found := machine.leftovers())}) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)
        return left

    def start(self, *, clock_s: int = 0, monotonic_s: int = 0) -> Machine:
        """Start the next machine."""
        name, address = self._next()
        kept = [str(ROOT), str(Path(sys.prefix).resolve()), str(self.folder)]
        config = self._sshd(name, clock_s)
        return self._start(monotonic_s, MACHINE, "machine", name, address, str(config), str(NATIVE), *kept)

    def start_fresh(self, lower: Sequence[Path], *, way_out: bool) -> Machine:
        """Start the next machine, which sees nothing of this one: its root file system is that of `lower`, the newest
        layer first. With `way_out` it reaches what this machine reaches."""
        name, address = self._next()
        files = self.folder / f"{name}.files"
        keys = files / "upper" / "etc" / "ssh" / "laboratory"
        for folder in (keys, files / "work", files / "root"):
            folder.mkdir(parents=True)
        for key in ("key", "key.pub"):
            shutil.copy(self.folder / key, keys)
        (keys / "sshd").write_text(FRESH_SSHD)
        layers = ":".join(map(str, lower))
        machine = self._start(0, FRESH, "machine", name, address, layers, str(files))
        if way_out:
            self.open(machine)
        return machine

    def open(self, machine: Machine | None = None) -> None:
        """Let a machine, or the runner, reach what this machine reaches."""
        namespace = self.network
        if machine is not None:
            namespace = f"{self.network}-{machine.name}"
            ip("netns", "attach", namespace, str(machine.inside))
            self._stack.callback(ip, "netns", "delete", namespace)
        ports = [word for flag in "tuTU" for word in (f"-{flag}", "none")]
        words = ["--config-net", "--ns-ifname", "lab0-out", "--foreground", "--quiet", "--runas", "0", *ports]
        argv = ["pasta", *words, "--no-map-gw", "--netns", f"/run/netns/{namespace}"]
        with (self.folder / f"{namespace}.log").open("wb") as log:
            way = self._stack.enter_context(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        self._stack.callback(way.terminate)
        wait_for(lambda: "lab0-out" in _output("ip", "-n", namespace, "-4", "route"), f"a way out of {namespace}")

    def _next(self) -> tuple[str, str]:
        number = len(self.machines) + 1
        return f"machine{number}", f"198.18.77.{number}"

    def _start(self, monotonic_s: int, script: str, *words: str) -> Machine:
        number, (name, address) = len(self.machines) + 1, self._next()
        unshare = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--time"]
        argv = [*unshare, "--monotonic", str(monotonic_s), "bash", "-c", script, *words]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.machines[name] = machine = Machine(name, address, process)
        wait_for(lambda: bool(machine.inside), f"{name}'s first process")
        port = f"port{number}"
        ends = f"{port} mtu {MTU} type veth peer name lab0 mtu {MTU} netns {machine.inside}"
        ip("link", "add", *ends.split(), inside=self.network)
        ip("link", "set", port, "master", "bridge", "up", inside=self.network)
        wait_for(lambda: self._answers(machine), f"the ssh server of {name}")
        return machine

    def _answers(self, machine: Machine) -> bool:
        assert machine.process.poll() is None, (self.folder / f"{machine.name}.log").read_text()
        argv = self.command("ssh", machine.name, "true")
        return subprocess.run(argv, env=self.environment, capture_output=True, check=False).returncode == 0

    def _wrong_clock(self) -> Path:
        """Return the library with which a process's time of day is wrong."""
        library = self.folder / "wrong_clock.so"
        if not library.exists():
            source = Path(__file__).with_name("wrong_clock.c")
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
        return library

    def _sshd(self, name: str, clock_s: int) -> Path:
        """Write the configuration of a machine's ssh server, in whose sessions the clock is `clock_s` ahead."""
        config = self.folder / f"{name}.sshd"
        lines = [
            f"HostKey {self.folder / 'key'}",
            "AuthorizedKeysFile /run/authorized_keys",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
        ]
        clock = [f"LD_PRELOAD={self._wrong_clock()}", f"WRONG_CLOCK_S={clock_s}"] if clock_s else []
        lines += ["Match User root", f"SetEnv {' '.join(['KOFN_CACHE=/run/native', *clock])}"]
        lines += ["Match User *,!root", f"SetEnv {' '.join(clock)}"] if clock else []
        config.write_text("\n".join(lines) + "\n")
        return config


@contextmanager
def laboratory(folder: Path) -> Iterator[Laboratory]:
    """Yield a laboratory without machines, whose files are in `folder`; end the machines that were started."""
    lab = Laboratory(folder, f"kofn-lab-{os.getpid()}")
    (folder / "bin").mkdir(parents=True)
    NATIVE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    (folder / "ssh_config").write_text(
        "".join(f"Host machine{number}\nHostName 198.18.77.{number}\n" for number in range(1, 10))
        + f"Host *\nIdentityFile {folder / 'key'}\nUserKnownHostsFile {folder / 'known_hosts'}\n"
        "StrictHostKeyChecking accept-new\nLogLevel ERROR\n"
    )
    ssh = folder / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {shlex.quote(str(folder / "ssh_config"))} "$@"\n')
    ssh.chmod(0o755)
    ip("netns", "add", lab.network)
    try:
        ip("link", "set", "lo", "up", inside=lab.network)
        ip("link", "add", "bridge", "mtu", MTU, "type", "bridge", inside=lab.network)
        ip("address", "add", f"{RUNNER}/24", "dev", "bridge", inside=lab.network)
        ip("link", "set", "bridge", "up", inside=lab.network)
        yield lab
    finally:
        lab.close()
        ip("netns", "delete", lab.network)


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def wait_for(true: Callable[[], bool], what: str) -> None:
    """Wait until something holds; an error of reading it means that it does not."""
    deadline = time.monotonic() + START_S
    while True:
        with suppress(OSError, IndexError):
            if true():
                return
        assert time.monotonic() < deadline, f"{what} was not there after {START_S:.0f} s"
        time.sleep(0.05)
