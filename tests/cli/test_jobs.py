"""`kofn jobs` with an API server in this process, and without one."""

import asyncio
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kofn.cli.jobs import jobs
from kofn_jobs.operator.handlers import check_request, note_requester
from tests.jobs.lab import Lab, kubeconfig, lab
from tests.run.real_run import KOFN, OWN_NETWORK

JOB: dict[str, Any] = {
    "apiVersion": "kofn.dev/v1alpha1",
    "kind": "TrainingRequest",
    "metadata": {"name": "digits"},
    "spec": {"accelerators": 3, "config": "[run]\ntarget = 0.8\n[model]\nlearning_rate = 0.1\ncompute_ms = 1.0\n"},
}


def written(folder: Path, document: Any) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def said(*arguments: str) -> Result:
    return CliRunner().invoke(jobs, arguments, catch_exceptions=False)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield a function that runs commands in a thread, beside a server in this one."""

    def use(course: Any) -> None:
        async def whole() -> None:
            async with lab() as made:
                path = tmp_path / "kubeconfig"
                path.write_text(yaml.safe_dump(kubeconfig(made.url)))
                monkeypatch.setenv("KUBECONFIG", str(path))
                await course(made, lambda *arguments: asyncio.to_thread(said, *arguments))

        asyncio.run(whole())

    return use


@pytest.mark.slow
def test_requests_are_submitted_listed_and_deleted(asked: Any, tmp_path: Path) -> None:
    async def course(made: Lab, kofn: Any) -> None:
        file = written(tmp_path, JOB)
        assert (await kofn("submit", file)).output == "digits is submitted to default: kofn jobs list\n"
        again = await kofn("submit", file)
        words = "digits is there already in default (Pending): another metadata.name, or kofn jobs delete digits"
        assert again.exit_code == 1 and words in again.output.replace("\n", " ")
        listed = (await kofn("list")).output.splitlines()
        assert listed[1].split()[:3] == ["digits", "3", "Pending"]
        assert (await kofn("delete", "digits")).exit_code == 0 and not made.api.all("trainingrequests")
        gone = await kofn("delete", "digits")
        assert gone.exit_code == 1 and "no job digits is in default" in gone.output

    asked(course)


@pytest.mark.slow
def test_logs_are_those_of_the_rank(asked: Any) -> None:
    async def course(made: Lab, kofn: Any) -> None:
        for node, index in ((0, 10), (0, 9), (1, 0)):
            labels = {"kofn.dev/request": "digits", "kofn.dev/attempt": "1", "kofn.dev/role": "worker"}
            meta = {"name": f"digits-1-node-{node}-0-{index}-abcde", "labels": labels}
            await made.api.create("", "v1", "pods", "default", {"metadata": meta, "spec": {"containers": []}})
        assert (await kofn("logs", "digits", "--rank", "2")).output == "log of digits-1-node-1-0-0-abcde\n"
        assert (await kofn("logs", "digits", "--rank", "1")).output == "log of digits-1-node-0-0-10-abcde\n"
        labels = {"kofn.dev/request": "digits", "kofn.dev/attempt": "1", "kofn.dev/role": "worker"}
        for name, phase in (("digits-1-node-0-0-9-zzzzz", "Failed"), ("digits-1-node-0-0-10-24568", "Failed")):
            meta, status = {"name": name, "labels": labels}, {"phase": phase}
            await made.api.create(
                "", "v1", "pods", "default", {"metadata": meta, "spec": {"containers": []}, "status": status}
            )
        assert (await kofn("logs", "digits", "--rank", "0")).output == "log of digits-1-node-0-0-9-abcde\n"
        assert (await kofn("logs", "digits", "--rank", "2")).output == "log of digits-1-node-1-0-0-abcde\n"
        few = await kofn("logs", "digits", "--rank", "3")
        assert few.exit_code == 1 and "digits has workers 0 to 2" in few.output
        none = await kofn("logs", "other")
        assert none.exit_code == 1 and "no job other is in default" in none.output

    asked(course)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"accelerators": 0}, "accelerators"),
        ({"acelerators": 3}, "acelerators"),
        ({"config": "[job]\nwords = 0\n"}, "spec.config: job.words"),
        ({"nodes": [{"name": "a", "accelerators": 2}]}, "3 accelerators: 2 = 2 are there"),
        ({"elastic": {"startWorkers": 4}}, "spec.elastic.startWorkers must be at most spec.accelerators (3), got 4"),
        ({"config": "[job]\nworkers = 7\n"}, "job.workers must be spec.accelerators, 3, got 7"),
        ({"config": "[job]\nracks = 3\n"}, "job.racks must be 1, since a request has one switch, got 3"),
        ({"script": "#" + "\N{GRINNING FACE}" * 70_000}, "spec.script must have at most 262144 bytes"),
        ({"image": "kofn worker"}, "`$.spec.image`"),
        ({"data": {"claim": "Bad Name"}}, "`$.spec.data.claim`"),
        ({"data": {"claim": "c", "path": "/a:b"}}, "`$.spec.data.path`"),
        *(
            ({"data": {"claim": "c", "path": path}}, "spec.data.path must not overlap /")
            for path in ("//", "/etc", "/etc/kofn", "/etc/kofn-certs/x", "/data/../var/lib/kofn")
        ),
        *(
            ({"resource": resource}, "`$.spec.resource`")
            for resource in ("", "gpu", "memory", "nvidia gpu", "nvidia.com/", "nvidia.com/a/b")
        ),
    ],
)
def test_invalid_request_is_refused_before_it_is_sent(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = written(tmp_path, JOB | {"spec": JOB["spec"] | change})
    result = said("run", file)
    assert result.exit_code == 1 and words in result.output.replace("\n", " ")


def test_unknown_field_of_the_metadata_is_refused(tmp_path: Path) -> None:
    result = said("run", written(tmp_path, JOB | {"metadata": {"name": "digits", "lables": {"a": "b"}}}))
    assert result.exit_code == 1 and "metadata.lables must be a field" in result.output.replace("\n", " ")


def test_missing_cluster_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    result = said("list")
    assert result.exit_code == 1 and result.output.startswith("kofn jobs list: no cluster is known")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_run_trains_on_this_machine(tmp_path: Path) -> None:
    nodes = [{"name": "a", "accelerators": 3}, {"name": "b", "accelerators": 3}]
    file = written(tmp_path, JOB | {"spec": JOB["spec"] | {"nodes": nodes}})
    command = [*OWN_NETWORK, sys.executable, "-c", KOFN, "jobs", "run", file, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "KOFN_STATE_DIR": str(tmp_path / "state")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 workers: a: 3" in result.stdout
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch")
def test_script_that_fails_at_once_runs_once(tmp_path: Path) -> None:
    file = written(tmp_path, JOB | {"spec": JOB["spec"] | {"script": "raise ValueError('no data')", "backoffLimit": 3}})
    command = [*OWN_NETWORK, sys.executable, "-c", KOFN, "jobs", "run", file, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "KOFN_STATE_DIR": str(tmp_path / "state")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1 and "ValueError: no data" in result.stderr
    assert "attempt 1 of 4 failed before its first iteration" in result.stderr.replace("\n", " ")
    assert not (tmp_path / "out-2").exists()


class Patch(dict[str, Any]):
    """The part of kopf's Patch that the webhook uses."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata = type("Meta", (), {"annotations": self})()


def test_requester_is_the_api_servers_user() -> None:
    patch, forged = Patch(), {"annotations": {"kofn.dev/requester": "root"}}
    known = {"operation": "CREATE", "old": None}
    who = {"username": "ada", "groups": ["a", "b"], "extra": {"project": ["p4"]}}
    note_requester(who, forged, patch, **known)  # type: ignore[arg-type]
    assert patch == {
        "kofn.dev/requester": "ada",
        "kofn.dev/requester-groups": "a,b",
        "kofn.dev/requester-extra": '{"project": ["p4"]}',
    }


def test_requester_cannot_be_changed() -> None:
    patch, old = Patch(), {"metadata": {"annotations": {"kofn.dev/requester": "ada"}}}
    forged = {"annotations": {"kofn.dev/requester": "root"}}
    note_requester({"username": "eve"}, forged, patch, operation="UPDATE", old=old)  # type: ignore[arg-type]
    assert patch == {"kofn.dev/requester": "ada"}


def test_invalid_configuration_is_refused_by_the_webhook() -> None:
    import kopf  # noqa: PLC0415

    check_request(JOB, operation="CREATE")  # type: ignore[arg-type]
    with pytest.raises(kopf.AdmissionError, match=r"spec\.config: job\.words"):
        check_request(JOB | {"spec": JOB["spec"] | {"config": "[job]\nwords = 0\n"}}, operation="CREATE")  # type: ignore[arg-type]
