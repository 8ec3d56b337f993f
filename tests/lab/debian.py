"""The root file system of a fresh machine: Debian 12 with OpenSSH's server and Python 3, and nothing else.

debootstrap makes it once, a minute or two, below the folder that KOFN_TEST_ROOTS names (/var/cache/kofn-tests).
"""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.lab import machines

CACHE = Path(os.environ.get("KOFN_TEST_ROOTS", "/var/cache/kofn-tests"))
RELEASE = "bookworm"
MIRROR = f"http://deb.debian.org/debian/ {RELEASE}"
SERVER_AND_PYTHON = "openssh-server,python3"
PACKAGES = ("gcc", "iproute2", "libc6-dev", "python3-venv")
"""The further packages of Debian that kofn needs."""

RESOLVERS = Path("/etc/resolv.conf")
APT_SETTINGS = re.compile(r"^Acquire::(Check-|http::|https::|Retries)")
PIP_SETTINGS = re.compile(r"^[^=]*\.(index-url|extra-index-url|proxy|trusted-host|cert)='(.*)'$")


def missing() -> str | None:
    """Return why there can be no fresh machines here; None if there can."""
    if found := machines.missing():
        return found
    for tool, package in (("debootstrap", "debootstrap"), ("pasta", "passt"), ("apt-get", "apt")):
        if shutil.which(tool) is None:
            return f"{tool} is missing (apt package {package})"
    if re.search(r"^nameserver\s+(127\.|::1)", RESOLVERS.read_text(), re.MULTILINE):
        return f"the resolver of {RESOLVERS} is on the loopback, which no namespace reaches"
    return None


class Roots:
    """Layers of root file systems, the newest layer first. They are shared, and not to be changed."""

    def __init__(self, folder: Path) -> None:
        """Make the layers that the cache lacks; `folder` gets what this machine alone has."""
        _tell_way(folder)
        self.bare = [folder, _cached(RELEASE, _bootstrap)]
        self.with_packages = [_cached(f"{RELEASE}-packages", lambda draft: _install(draft, self.bare)), *self.bare]
        """The same, and an administrator has added the packages of Debian that kofn needs."""


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made in another place first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path, draft = CACHE / name, CACHE / f"{name}.new"
        if not path.exists():
            shutil.rmtree(draft, ignore_errors=True)
            make(draft)
            draft.rename(path)
    return path


def _run(*argv: str) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def _mirrors() -> list[str]:
    """Return the mirrors of this machine's apt that have the release, as words of sources.list."""
    fields = "$(ORIGIN)|$(REPO_URI) $(RELEASE)"
    lines = _run("apt-get", "indextargets", "--format", fields, "Created-By: Packages").splitlines()
    own = [line.removeprefix("Debian|") for line in lines if re.fullmatch(rf"Debian\|http://\S+ {RELEASE}\S*", line)]
    return list(dict.fromkeys(own)) if any(line.endswith(f" {RELEASE}") for line in own) else [MIRROR]


def _bootstrap(root: Path) -> None:
    mirror = next(line for line in _mirrors() if line.endswith(f" {RELEASE}")).split()[0]
    _run("debootstrap", "--variant=minbase", f"--include={SERVER_AND_PYTHON}", RELEASE, str(root), mirror)


def _tell_way(root: Path) -> None:
    """Write a layer with what this machine's apt and pip know of mirrors, indexes and certificates."""
    for folder in ("etc/apt/apt.conf.d", "etc/ssl"):
        (root / folder).mkdir(parents=True)
    shutil.copy(RESOLVERS, root / "etc/resolv.conf")
    (root / "etc/apt/sources.list").write_text("".join(f"deb {mirror} main\n" for mirror in _mirrors()))
    settings = [line for line in _run("apt-config", "dump").splitlines() if APT_SETTINGS.match(line)]
    (root / "etc/apt/apt.conf.d/99laboratory").write_text("\n".join(settings) + "\n")
    lines = ["[global]", "no-compile = true"]  # most modules are never imported in a test
    for found in filter(None, map(PIP_SETTINGS.match, _run("pip", "config", "list").splitlines())):
        name, value = found.groups()
        if name == "cert":
            shutil.copy(value, root / "etc/ssl/laboratory.pem")
            value = "/etc/ssl/laboratory.pem"
        value = " ".join(word for word in value.split() if not word.startswith("file:"))
        line = f"{name} = {value}"
        if value and line not in lines:
            lines.append(line)
    (root / "etc/pip.conf").write_text("\n".join(lines) + "\n")


INSTALL = r"""
set -e
lower=$1 upper=$2; shift 2
mkdir -p "$upper" "$upper.work" "$upper.root"
mount -t overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$upper.work" overlay "$upper.root"
cd "$upper.root"
mount --rbind /dev dev
mount -t proc proc proc
export DEBIAN_FRONTEND=noninteractive
chroot . apt-get update
chroot . apt-get install -y --no-install-recommends "$@"
chroot . apt-get clean
"""
"""Installs packages into a layer: `bash -c INSTALL install LOWER LAYER PACKAGE...`."""


def _install(layer: Path, lower: list[Path]) -> None:
    below = ":".join(map(str, lower))
    _run("unshare", "--mount", "bash", "-c", INSTALL, "install", below, str(layer), *PACKAGES)
    for folder in (f"{layer}.work", f"{layer}.root"):
        shutil.rmtree(folder)
