"""Laboratories of users who are not root: by sudo, or in user namespaces behind a relay."""

import json
from collections.abc import Iterator

import pytest

from tests.lab.machines import Laboratory, laboratory, missing
from tests.lab.test_lab_run import written

pytestmark = [
    pytest.mark.root,
    pytest.mark.lab,
    pytest.mark.skipif(missing() is not None, reason=f"no laboratory: {missing()}"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with laboratory(tmp_path_factory.mktemp("laboratory") / "lab") as made:
        for _ in range(3):
            made.start()
        yield made


@pytest.mark.parametrize(("user", "root"), [("admin", "root"), ("student", "root of a user namespace")])
def test_user_without_root_gets_the_same_results(lab: Laboratory, user: str, root: str) -> None:
    file = str(lab.file(user=user))
    assert lab.kofn("lab", "setup", file).returncode == 0
    found = json.loads(lab.kofn("doctor", "--lab", file, "--json").stdout)
    assert found["ok"], found
    assert {check["detail"] for check in found["checks"] if check["name"].endswith(" root")} == {root}
    out = lab.folder / user
    done = lab.kofn("run", str(written(lab, f"job-{user}", trial="fixed:3")), "--lab", file, "--out", str(out))
    assert "kofn run:" not in done.stderr, done.stderr
    trial = json.loads((out / "summary.json").read_text())["trials"][0]
    assert (trial["iterations"], trial["identity_error"], trial["conservation_error"]) == (40, None, None)
    assert lab.leftovers() == {}


def test_tree_needs_root(lab: Laboratory) -> None:
    file = lab.file(user="student")
    file.write_text(file.read_text() + "leaves = [0, 1]\n")
    assert lab.kofn("lab", "setup", str(file)).returncode == 0
    done = lab.kofn("run", str(written(lab, "tree")), "--lab", str(file), "--set", "job.racks=2")
    assert done.returncode == 1 and "must have root for a tree's switch" in " ".join(done.stderr.split()), done.stderr
    assert lab.leftovers() == {}


def test_question_is_named_and_not_waited_for(lab: Laboratory) -> None:
    file = lab.file(user="nobody-there")
    done = lab.kofn("run", "--lab", str(file), timeout_s=60)
    assert done.returncode == 1 and "Permission denied (publickey" in done.stderr, done.stderr


def test_second_laboratory_on_a_machine_is_refused_by_name(lab: Laboratory) -> None:
    file = str(lab.file())
    assert lab.kofn("lab", "setup", file).returncode == 0
    out = lab.folder / "first"
    run = lab.begin("run", str(written(lab, "first", iterations=5000)), "--lab", file, "--out", str(out), "--quiet")
    try:
        lab.until((out / "all" / "worker-0.jsonl").exists, "the first iteration", run)
        ports = ["--set", "network.controller_port=50062", "--set", "network.p4runtime_port=50061"]
        argv = ["run", str(written(lab, "second")), "--lab", file, *ports]
        done = lab.kofn(*argv, state="second")
        assert done.returncode == 1 and "another kofn network is running" in done.stderr, done.stderr
        run.terminate()
        assert run.wait(30) == 130
    finally:
        run.kill()
    assert lab.leftovers() == {}
