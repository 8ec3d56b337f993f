"""`kofn run --slurm`: one sbatch of three nodes, the same report."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.machines import Laboratory, laboratory, missing
from tests.lab.slurm import Slurm, missing_slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.lab,
    pytest.mark.skipif((missing() or missing_slurm()) is not None, reason=f"no Slurm: {missing() or missing_slurm()}"),
]

BATCH = """#!/bin/bash
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
exec {kofn} run --slurm --out {out} --quiet --set run.alone=false"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with laboratory(tmp_path_factory.mktemp("laboratory") / "lab") as lab:
        for _ in range(3):
            lab.start()
        cluster = Slurm(lab)
        cluster.start()
        yield cluster
    cluster.end()


def batch(lab: Laboratory, out: Path) -> Path:
    path, kofn = lab.folder / "job.sh", Path(sys.executable).with_name("kofn")
    path.write_text(BATCH.format(kofn=shlex.quote(str(kofn)), out=shlex.quote(str(out))))
    return path


def test_one_sbatch_writes_the_report(slurm: Slurm) -> None:
    out, said = slurm.lab.folder / "run", slurm.lab.folder / "said"
    done = slurm.run("sbatch", "--wait", f"--output={said}", str(batch(slurm.lab, out)))
    assert done.returncode == 0, done.stderr + said.read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert [trial["objective"] for trial in summary["trials"]] == ["source", "progress", "all"] and summary["ok"]
    machines = json.loads((out / "run.json").read_text())["machines"]
    assert {machine["host"]: len(machine["nodes"]) for machine in machines} == {
        "machine1": 1,
        "machine2": 2,
        "machine3": 2,
    }
    assert (out / "report.html").exists()
    left = [each for left in slurm.lab.leftovers().values() for each in left]
    assert [each for each in left if "slurm" not in each and "munge" not in each] == []


def test_ordinary_user_runs_in_user_namespaces(slurm: Slurm) -> None:
    script = slurm.lab.folder / "student.sh"
    text = batch(slurm.lab, Path("/tmp/run")).read_text()
    script.write_text(text.replace("exec ", "export HOME=/run/home-student\nexec ") + " --trial fixed:3")
    user = ["runuser", "-u", "student", "--", "env", f"SLURM_CONF={slurm.config}"]
    done = slurm.run(*user, "sbatch", "--chdir=/tmp", "--wait", "--output=/tmp/said", str(script))
    said = slurm.control.run("cat", "/tmp/said")
    assert done.returncode == 0 and "gradients conserved" in said, done.stderr + said
    (trial,) = json.loads(slurm.control.run("cat", "/tmp/run/summary.json"))["trials"]
    assert (trial["identity_error"], trial["conservation_error"]) == (None, None)


def test_outside_of_an_allocation_it_is_refused(slurm: Slurm) -> None:
    done = slurm.lab.kofn("run", "--slurm")
    assert done.returncode == 2 and "--slurm needs a Slurm allocation" in done.stderr
