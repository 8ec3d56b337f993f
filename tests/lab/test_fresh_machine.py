"""`kofn lab setup` on machines that have Debian 12 and nothing of kofn, with and without package mirrors.

machine1 reaches the mirrors and the package index. machine2 reaches neither; an administrator has installed Debian's
packages there. machine3 reaches neither, and has only OpenSSH's server and Python.
"""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kofn.run.lab.checkout import Checkout
from tests.lab.debian import PACKAGES, Roots, missing
from tests.lab.machines import Laboratory, Machine, laboratory

pytestmark = [
    pytest.mark.lab,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(missing() is not None, reason=f"no fresh machines: {missing()}"),
]

SETUP_S = 900.0
QUICK_S = 15.0
"""The longest second set-up, on a loaded machine: it takes two seconds."""

JOB = """
run = {trials = ["fixed:3"], max_iterations = 40, target = 1.0, alone = false}
model = {compute_ms = 5.0}
job = {workers = 4}
"""
PLACE = f"/root/.cache/kofn/lab/{Checkout.own().version}"

LIVING = """
cd /root/.cache/kofn/lab
mkdir used && cp -r $1/mininet used/ && touch used/.complete
export KOFN_LAB_PYTHON=none
(while sleep 0.5; do echo '{"do": "clock"}'; done) | python3 used/mininet/boot.py --machine /tmp/runs
"""
"""Runs boot.py in the checkout `used`, as a runner does."""


OLD = """
cd /root/.cache/kofn/lab
mkdir old older newer .new
for name in old older newer; do touch $name/.complete; done
touch -d '3 days ago' used/.complete; touch -d '2 days ago' older/.complete; touch -d '1 day ago' old/.complete
"""
"""Makes earlier checkouts, and one that was not complete."""


@dataclass(frozen=True)
class Ready:
    """Machines that are set up, and what their set-up has said."""

    lab: Laboratory
    file: Path
    interrupted: str
    said: str


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with laboratory(tmp_path_factory.mktemp("laboratory") / "lab") as made:
        roots = Roots(made.folder / "way")
        made.open()
        made.start_fresh(roots.bare, way_out=True)
        made.start_fresh(roots.with_packages, way_out=False)
        made.start_fresh(roots.bare, way_out=False)
        yield made


@pytest.fixture(scope="module")
def ready(lab: Laboratory) -> Ready:
    """The first two machines: their set-up is interrupted, and begun again."""
    file = lab.file(python=None, names=["machine1", "machine2"])
    output = lab.folder / "output"
    setup = lab.begin("lab", "setup", str(file))
    try:
        lab.until(lambda: "root@machine1: setup: Setting up" in output.read_text(), "the first package", setup)
        setup.send_signal(signal.SIGINT)
        assert setup.wait(20) == 130
    finally:
        setup.kill()
    interrupted = output.read_text()
    done = lab.kofn("lab", "setup", str(file), timeout_s=SETUP_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return Ready(lab, file, interrupted, done.stdout)


def test_interrupted_setup_is_completed_by_the_next_one(ready: Ready) -> None:
    assert "kofn lab setup: stopped by SIGINT" in ready.interrupted
    assert ready.said.count("has made its environment") == 2
    assert ready.lab.machines["machine1"].run("dpkg", "--audit") == ""


def test_each_line_has_its_machine(ready: Ready) -> None:
    first, *lines = ready.said.splitlines()
    assert first.startswith("this checkout is ") and all(re.match(r"root@machine[12]: \S", line) for line in lines)


def test_packages_come_from_the_index_or_from_the_runner(ready: Ready) -> None:
    assert "root@machine2: reaches no package index" in ready.said and "root@machine1: reaches no" not in ready.said
    assert re.search(r"root@machine2: gets \d+ packages \(\d+ MB\)", ready.said)
    assert "root@machine1: setup: Collecting numpy" in ready.said
    assert not any("wheels" in name for name in ready.lab.machines["machine2"].run("ls", "-A", PLACE).split())


def test_second_setup_is_quick(ready: Ready) -> None:
    began = time.monotonic()
    done = ready.lab.kofn("lab", "setup", str(ready.file))
    assert done.returncode == 0 and time.monotonic() - began < QUICK_S
    assert done.stdout.count("has this checkout in") == done.stdout.count("has its environment") == 2, done.stdout


def test_fresh_machines_have_a_run(ready: Ready) -> None:
    lab, out = ready.lab, ready.lab.folder / "run"
    (lab.folder / "job.toml").write_text(JOB)
    done = lab.kofn("run", str(lab.folder / "job.toml"), "--lab", str(ready.file), "--out", str(out))
    assert done.returncode == 1 and "kofn run:" not in done.stderr, done.stderr  # accuracy 1 is not reached
    trial = json.loads((out / "summary.json").read_text())["trials"][0]
    assert (trial["iterations"], trial["ledger"]) == (40, True)
    assert (trial["identity_error"], trial["conservation_error"], trial["conservation_unchecked"]) == (None,) * 3
    record = json.loads((out / "run.json").read_text())
    nodes = {machine["host"]: machine["nodes"] for machine in record["machines"]}
    assert nodes == {"root@machine1": ["s1"], "root@machine2": ["h1", "h2", "h3", "h4"]}
    assert not {"machine1", "machine2"} & lab.leftovers().keys()


def test_checkout_in_use_stays_and_others_are_bounded(ready: Ready) -> None:
    machine = ready.lab.machines["machine1"]
    argv = ["nsenter", "--all", "--target", str(machine.inside), "sh", "-c", LIVING, "sh", PLACE]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as boot:
        try:
            assert boot.stdout is not None and b'"here"' in boot.stdout.readline()
            machine.run("sh", "-c", OLD)
            assert ready.lab.kofn("lab", "setup", str(ready.file)).returncode == 0
            assert checkouts(machine) == {Path(PLACE).name, "used", "newer"}
        finally:
            machine.run("sh", "-c", "kill $(pgrep -f [u]sed/mininet/boot.py)")
            boot.communicate()
    assert ready.lab.kofn("lab", "setup", str(ready.file)).returncode == 0
    assert checkouts(machine) == {Path(PLACE).name, "newer"}


def checkouts(machine: Machine) -> set[str]:
    names = machine.run("ls", "-A", "/root/.cache/kofn/lab").split()
    return {name for name in names if name not in (".lock", "runs")}


def test_missing_packages_of_debian_are_named_in_one_line(lab: Laboratory) -> None:
    done = lab.kofn("lab", "setup", str(lab.file(python=None, names=["machine3"])), timeout_s=SETUP_S)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    words = done.stderr.split("these packages are missing, and apt-get could not install them")[1]
    assert all(words.count(f" {package}") == 2 for package in PACKAGES), done.stderr
    assert "let this machine reach a package mirror" in words


def test_own_python_is_checked_and_nothing_is_changed(lab: Laboratory) -> None:
    before = installed(lab.machines["machine3"])
    done = lab.kofn("lab", "setup", str(lab.file(python="/usr/bin/python3", names=["machine3"])))
    assert done.returncode == 1
    debian, python = done.stderr.splitlines()
    assert "these packages are missing: gcc libc6-dev iproute2 - install them" in debian
    assert python.startswith("/usr/bin/python3 must have kofn's packages, these are missing: ")
    assert all(name in python for name in ("click", "finsy", "grpcio", "msgspec", "numpy", "scipy>=1.15", "xxhash"))
    assert "/usr/bin/python3 -m pip install -c " in python
    assert installed(lab.machines["machine3"]) == before
    assert ".venv" not in lab.machines["machine3"].run("ls", "-A", PLACE).split()


def installed(machine: Machine) -> str:
    return machine.run("dpkg-query", "--show")
