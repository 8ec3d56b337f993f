"""The objects made for a request, against the published CRDs and the rules of the API."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kofn_common.config.schema import Config
from kofn_jobs.errors import RequestError
from kofn_jobs.kinds import AttemptOutcome, choose, outcome
from kofn_jobs.manifests import config_map, configuration, control_pod, secret, service
from kofn_jobs.request import (
    API_VERSION,
    KIND,
    RELEASE,
    CheckpointClaim,
    Data,
    Elastic,
    ObjectMeta,
    TrainingRequest,
    TrainingSpec,
    TrainingStatus,
)
from kofn_jobs.split import NodePart
from kofn_jobs.workloads import workload
from tests.jobs.published import faults, published

EQUAL, UNEQUAL = (5, 5), (10, 5)


def request(kind: str, counts: tuple[int, ...], **spec: Any) -> TrainingRequest:
    parts = tuple(NodePart(f"node-{place}", count) for place, count in enumerate(counts))
    return TrainingRequest(
        metadata=ObjectMeta(name="digits", namespace="ml", uid="1234"),
        spec=TrainingSpec(accelerators=sum(counts), **spec),
        status=TrainingStatus(phase="Preparing", attempt=1, parts=parts, workload=kind),
    )


FULL = {
    "script": "print(1)",
    "data": Data(claim="images"),
    "checkpoint": CheckpointClaim(claim="saved", every=50),
    "elastic": Elastic(objective="fixed:3", start_workers=4),
}


@pytest.mark.parametrize("spec", [{}, FULL], ids=["plain", "full"])
@pytest.mark.parametrize(("kind", "counts"), [("JobSet", UNEQUAL), ("MPIJob", EQUAL), ("TrainJob", EQUAL)])
def test_workloads_are_valid_by_the_published_crds(kind: str, counts: tuple[int, ...], spec: dict[str, Any]) -> None:
    made, crd = workload(request(kind, counts, **spec), 1), published()[kind]
    assert (made["kind"], made["apiVersion"]) == (kind, crd["apiVersion"])
    assert not faults(crd["schema"], made)
    assert not faults(crd["schema"], made, made)


def test_workers_of_a_request_share_a_folder_of_its_claim_for_checkpoints() -> None:
    asked = request("JobSet", UNEQUAL, checkpoint=CheckpointClaim(claim="saved", every=50))
    assert configuration(asked).run.checkpoint_every == 50
    for job in workload(asked, 1)["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        volume = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "saved", "readOnly": False}}
        mount = {"name": "checkpoints", "mountPath": "/var/lib/kofn-checkpoints", "subPath": "digits-1234"}
        assert volume in pod["volumes"] and mount in container["volumeMounts"]
        assert container["command"][-1].endswith(" --checkpoints /var/lib/kofn-checkpoints")


@pytest.mark.parametrize(
    ("kind", "change", "fault"),
    [
        ("JobSet", {"replicas": 3}, "'replicas' was unexpected"),
        ("MPIJob", {"slotsPerWorker": [10, 5]}, "[10, 5] is not of type 'integer'"),
        ("TrainJob", {"trainer": {"numProcPerNode": 0}}, "$.spec.trainer.numProcPerNode: "),
        ("JobSet", {"startupPolicy": {"startupPolicyOrder": "InOrder"}}, ""),
    ],
)
def test_published_crds_refuse_invalid_changes(kind: str, change: dict[str, Any], fault: str) -> None:
    """So the oracle does refuse. The last change may pass while nothing depends on it."""
    made = workload(request(kind, EQUAL), 1)
    made["spec"] |= change
    found = faults(published()[kind]["schema"], made)
    assert any(fault in each for each in found) if fault else not found
    if not fault:
        made["spec"]["replicatedJobs"][0]["dependsOn"] = [{"name": "other", "status": "Ready"}]
        assert faults(published()[kind]["schema"], made)


def test_running_train_job_cannot_be_changed() -> None:
    old, new = workload(request("TrainJob", EQUAL), 1), workload(request("TrainJob", (6, 6)), 1)
    assert any("trainer" in fault for fault in faults(published()["TrainJob"]["schema"], new, old))


def pods(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod templates of a workload."""
    found = []
    if isinstance(made, dict):
        found += [made] if "containers" in made.get("spec", {}) else []
        found += [pod for value in made.values() for pod in pods(value)]
    if isinstance(made, list):
        found += [pod for value in made for pod in pods(value)]
    return found


def test_job_set_has_a_job_for_each_part_on_its_node() -> None:
    jobs = workload(request("JobSet", UNEQUAL), 1)["spec"]["replicatedJobs"]
    specs = [job["template"]["spec"] for job in jobs]
    assert [(spec["parallelism"], spec["completions"]) for spec in specs] == [(10, 10), (5, 5)]
    nodes = [spec["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"] for spec in specs]
    assert nodes == ["node-0", "node-1"]


def test_ranks_continue_from_node_to_node() -> None:
    """The pods' shell command computes them."""
    ranks = []
    for pod, count in zip(pods(workload(request("JobSet", UNEQUAL), 1)), UNEQUAL, strict=True):
        command = pod["spec"]["containers"][0]["command"][2].removeprefix("exec ")
        for index in range(count):
            shell = f'kofn() {{ echo "$4"; }}; {command}'
            environment = {"JOB_COMPLETION_INDEX": str(index)}
            ran = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, text=True, check=True)
            ranks.append(int(ran.stdout))
    assert ranks == list(range(15))


@pytest.mark.parametrize("kind", ["JobSet", "MPIJob", "TrainJob"])
def test_workers_wait_behind_the_gate_without_the_controllers_key(kind: str) -> None:
    made = workload(request(kind, EQUAL), 1)
    gated = [pod for pod in pods(made) if "volumes" in pod["spec"]]
    assert gated and all(pod["spec"]["schedulingGates"] == [{"name": "kofn.dev/start"}] for pod in gated)
    assert all(pod["metadata"]["labels"]["kofn.dev/request"] == "digits" for pod in gated)
    assert "controller.key" not in json.dumps(made) and "operator.key" not in json.dumps(made)


@pytest.mark.parametrize(("kind", "suffix"), [("JobSet", "-0-63-abcde"), ("MPIJob", "-worker-63")])
def test_names_fit_pods_of_64_workers(kind: str, suffix: str) -> None:
    """JobSet's host name is <set>-<job>-0-<index>-xxxxx, MPIJob's label <job>-worker-<index>: 63 letters or fewer."""
    counts = (64,) if kind == "MPIJob" else (4,) * 16
    asked = request(kind, counts)
    asked = msgspec.structs.replace(asked, metadata=ObjectMeta(name="a" * 40, namespace="ml", uid="1234"))
    made = workload(asked, 999)
    jobs = [job["name"] for job in made["spec"]["replicatedJobs"]] if kind == "JobSet" else [""]
    names = [f"{made['metadata']['name']}-{job}{suffix}" if job else made["metadata"]["name"] + suffix for job in jobs]
    assert max(map(len, names)) <= 63, max(names, key=len)


def test_config_map_has_the_parts_the_script_and_a_valid_configuration(tmp_path: Path) -> None:
    asked = request("JobSet", UNEQUAL, config="[model]\nbatch = 16\n", **FULL)
    data = config_map(asked)["data"]
    assert json.loads(data["nodes.json"]) == {"node-0": 10, "node-1": 5}
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    config = Config.load(tmp_path / "job.toml")
    assert (config.job.workers, config.model.batch, config.policy.objective) == (15, 16, "fixed:3")
    assert config.torch.script == str(tmp_path / "script.py") and config.torch.group == "worker"
    assert config.job.start_workers == 4


def test_invalid_configuration_names_its_field() -> None:
    with pytest.raises(RequestError, match=r"spec\.config: .*batch"):
        configuration(request("JobSet", UNEQUAL, config="[model]\nbatch = 0\n"))


def test_control_pod_has_only_the_controllers_key() -> None:
    text = json.dumps(control_pod(request("JobSet", UNEQUAL), 2))
    assert "controller.key" in text and "worker-0.key" not in text
    assert control_pod(request("JobSet", UNEQUAL), 2)["metadata"]["name"] == "digits-2-switch"


def test_everything_belongs_to_the_request() -> None:
    asked = request("JobSet", UNEQUAL)
    made = [
        config_map(asked),
        secret(asked, {"ca.pem": b"x"}),
        service(asked),
        control_pod(asked, 1),
        workload(asked, 1),
    ]
    for each in made:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingRequest", "1234", True)
        assert each["metadata"]["namespace"] == "ml"
    assert base64.b64decode(made[1]["data"]["ca.pem"]) == b"x"


@pytest.mark.parametrize(
    ("wanted", "counts", "installed", "chosen"),
    [
        ("auto", UNEQUAL, {"JobSet", "MPIJob", "TrainJob"}, "JobSet"),
        ("auto", EQUAL, {"MPIJob", "TrainJob"}, "MPIJob"),
        ("auto", EQUAL, {"TrainJob"}, "TrainJob"),
        ("TrainJob", EQUAL, {"JobSet", "TrainJob"}, "TrainJob"),
    ],
)
def test_kind_of_workload_follows_request_and_cluster(
    wanted: Any, counts: tuple[int, ...], installed: set[str], chosen: str
) -> None:
    asked = request("", counts, workload=wanted)
    assert choose(asked.spec, asked.status.parts, installed) == chosen


@pytest.mark.parametrize(
    ("wanted", "installed", "words"),
    [
        ("MPIJob", {"MPIJob"}, "spec.workload is MPIJob, which needs equal parts, got 10 + 5: use JobSet"),
        ("auto", {"MPIJob"}, "parts 10 + 5 need JobSet; installed: MPIJob"),
        ("auto", set(), "parts 10 + 5 need JobSet; installed: none"),
    ],
)
def test_impossible_kind_of_workload_is_refused(wanted: Any, installed: set[str], words: str) -> None:
    asked = request("", UNEQUAL, workload=wanted)
    with pytest.raises(RequestError) as refused:
        choose(asked.spec, asked.status.parts, installed)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("kind", "condition", "expected"),
    [
        ("JobSet", {"type": "Completed", "status": "True"}, (AttemptOutcome.SUCCEEDED, "")),
        ("JobSet", {"type": "Completed", "status": "False"}, (None, "")),
        ("MPIJob", {"type": "Failed", "status": "True", "message": "no"}, (AttemptOutcome.FAILED, "no")),
        ("TrainJob", {"type": "Complete", "status": "True"}, (AttemptOutcome.SUCCEEDED, "")),
    ],
)
def test_outcome_follows_the_workloads_condition(
    kind: str, condition: dict[str, str], expected: tuple[Any, str]
) -> None:
    assert outcome(kind, {"conditions": [condition]}) == expected


@pytest.mark.parametrize(("kind", "counts"), [("JobSet", UNEQUAL), ("TrainJob", EQUAL)])
def test_worker_sees_only_its_own_certificate(kind: str, counts: tuple[int, ...]) -> None:
    """The completion index selects it: the kubelet mounts one folder of the volume."""
    seen: dict[int, set[str]] = {}
    first = 0
    for template in pods(workload(request(kind, counts), 1)):
        (volume,) = (each for each in template["spec"]["volumes"] if each["name"] == "certificates")
        (container,) = template["spec"]["containers"]
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "certificates")
        assert mount["subPathExpr"] == "$(JOB_COMPLETION_INDEX)"
        folders: dict[int, set[str]] = {}
        for item in volume["secret"]["items"]:
            index, _, name = item["path"].partition("/")
            assert name == item["key"]
            folders.setdefault(int(index), set()).add(name)
        seen |= {first + index: names for index, names in folders.items()}
        first += len(folders)
    assert seen == {
        rank: {"ca.pem", "job-1.token", f"job-1-worker-{rank}.pem", f"job-1-worker-{rank}.key"}
        for rank in range(sum(counts))
    }


@pytest.mark.parametrize(
    ("spec", "image"),
    [
        ({}, f"kofn-worker:{RELEASE}"),
        ({"script": "1"}, f"kofn-worker-torch-cuda:{RELEASE}"),
        ({"script": "1", "resource": "cpu"}, f"kofn-worker-torch:{RELEASE}"),
        ({"script": "1", "resource": "amd.com/gpu", "image": "r.example/rocm:1"}, "r.example/rocm:1"),
    ],
)
def test_image_fits_the_resource(spec: dict[str, Any], image: str) -> None:
    assert TrainingSpec(accelerators=3, **spec).worker_image == image


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resource": "amd.com/gpu"}, "spec.image must be given with a script on amd.com/gpu"),
        (
            {"image": "r.example/kofn-worker-torch:0.1.0"},
            "spec.resource must be cpu with the image r.example/kofn-worker-torch:0.1.0, got nvidia.com/gpu",
        ),
        ({"resource": "cpu", "image": "kofn-worker-torch-cuda"}, "spec.resource must be nvidia.com/gpu with the image"),
    ],
)
def test_image_that_does_not_fit_the_resource_is_refused_at_submit(spec: dict[str, str], words: str) -> None:
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}}
    with pytest.raises(RequestError, match=words):
        TrainingRequest.read(document | {"spec": {"accelerators": 3, "script": "1"} | spec})
