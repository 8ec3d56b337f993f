"""The objects of a request as JSON documents.

    NAME-kofn       ConfigMap: the parts, job.toml, script.py
    NAME-kofn       Secret: certificates and the token
    NAME-kofn       headless Service: the switch's and the controller's address
    NAME-1-switch   Pod of attempt 1: switch and controller
    NAME-1          the workers of attempt 1 (workloads.py)

The request owns all these objects. Kubernetes deletes the objects with the request.
"""

import base64
import tomllib
from collections.abc import Mapping
from typing import Any, TypeAlias

from kofn_common.config.dump import to_toml
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.json_text import json_text
from kofn_jobs.errors import RequestError
from kofn_jobs.kinds import Role
from kofn_jobs.request import API_VERSION, GROUP, KIND, RELEASE, RESERVED, TrainingRequest

Document: TypeAlias = dict[str, Any]

REQUEST_LABEL = f"{GROUP}/request"
UID_LABEL = f"{GROUP}/uid"
"""The request's uid: a later request may have the same name."""

ATTEMPT_LABEL = f"{GROUP}/attempt"
ROLE_LABEL = f"{GROUP}/role"
CONTROL, WORKER = "control", "worker"
"""The values of ROLE_LABEL."""

GATE = f"{GROUP}/start"
"""The scheduling gate that all workers of an attempt lose at once."""

CONTROLLER_PORT = 50052
FILES, CERTIFICATES, STATE, CHECKPOINTS = RESERVED
COMMON = ("ca.pem", "job-1.token")

SWITCH_IMAGE = f"kofn-switch:{RELEASE}"

NETWORK = {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}, "allowPrivilegeEscalation": False}
"""Rights of containers that make a tunnel or read frames; both need user 0."""


def name_of(request: TrainingRequest, role: Role, attempt: int) -> str:
    """Return the name of an object of the request."""
    name = request.metadata.name
    return {Role.CONTROL: f"{name}-{attempt}-switch", Role.WORKLOAD: f"{name}-{attempt}"}.get(role, f"{name}-kofn")


def metadata(request: TrainingRequest, role: Role, attempt: int = 0) -> Document:
    """Return metadata with the labels for finding the object, and its owner."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": request.metadata.name,
        "uid": request.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name_of(request, role, attempt),
        "namespace": request.metadata.namespace,
        "labels": labels(request, attempt),
        "ownerReferences": [owner],
    }


def labels(request: TrainingRequest, attempt: int = 0, role: str = "") -> dict[str, str]:
    """Return the labels of an object. The labels of a pod include its role."""
    found = {REQUEST_LABEL: request.metadata.name, UID_LABEL: request.metadata.uid}
    found |= {ATTEMPT_LABEL: str(attempt)} if attempt else {}
    return found | ({ROLE_LABEL: role} if role else {})


def configuration(request: TrainingRequest) -> Config:
    """Return the job's configuration with the request's settings. Raise RequestError if configuration and settings
    contradict each other."""
    spec = request.spec
    job: Document = {"workers": spec.accelerators}
    if spec.elastic.start_workers is not None:
        job["start_workers"] = spec.elastic.start_workers
    settings: Document = {"job": job, "run": {"name": request.metadata.name}}
    if spec.elastic.objective is not None:
        settings["policy"] = {"objective": spec.elastic.objective}
    if spec.checkpoint is not None:
        settings["run"]["checkpoint_every"] = spec.checkpoint.every
    if spec.script:
        settings["torch"] = {"script": "script.py", "group": "worker"}
    try:
        config = Config.parse(spec.config, settings)
    except ConfigError as error:
        raise RequestError(f"spec.config: {error}") from error
    said = tomllib.loads(spec.config).get("job", {}).get("workers", spec.accelerators)
    if said != spec.accelerators:
        raise RequestError(f"spec.config: job.workers must be spec.accelerators, {spec.accelerators}, got {said}")
    if config.job.racks > 1:
        raise RequestError(f"spec.config: job.racks must be 1, since a request has one switch, got {config.job.racks}")
    return config


def config_map(request: TrainingRequest) -> Document:
    """Return the ConfigMap with the files for the pods; `nodes.json` has each node's number of accelerators."""
    parts = {part.node: part.accelerators for part in request.status.parts}
    data = {"nodes.json": json_text(parts), "job.toml": to_toml(configuration(request))}
    data |= {"script.py": request.spec.script} if request.spec.script else {}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(request, Role.CONFIG), "data": data}


def secret(request: TrainingRequest, files: Mapping[str, bytes]) -> Document:
    """Return the Secret with the files of `kofn certs`."""
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": metadata(request, Role.SECRET),
        "data": data,
    }


def service(request: TrainingRequest) -> Document:
    """Return a service that resolves to the switch's pod even before this pod is ready, so that pods may start in any
    order."""
    ports = [
        {"name": "controller", "port": CONTROLLER_PORT, "protocol": "TCP"},
        {"name": "tunnel", "port": 19277, "protocol": "UDP"},
    ]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels(request, role=CONTROL),
        "ports": ports,
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(request, Role.SERVICE), "spec": spec}


def control_pod(request: TrainingRequest, attempt: int) -> Document:
    """Return the pod of switch and controller: P4Runtime stays between the two, on the pod's loopback."""
    meta = metadata(request, Role.CONTROL, attempt)
    meta["labels"] = labels(request, attempt, CONTROL)
    switch = {
        "name": "switch",
        "image": SWITCH_IMAGE,
        "command": ["kofn", "switch", "--tunnels", str(request.spec.accelerators)],
        "securityContext": NETWORK,
    }
    listen = ["--listen", f"0.0.0.0:{CONTROLLER_PORT}"]
    controller = {
        "name": "controller",
        "image": SWITCH_IMAGE,
        "command": ["kofn", "controller", f"{FILES}/job.toml", "--certs", CERTIFICATES, *listen],
        "volumeMounts": [_mount("files", FILES), _mount("certificates", CERTIFICATES)],
        "readinessProbe": {"tcpSocket": {"port": CONTROLLER_PORT}, "periodSeconds": 2},
        "securityContext": {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False},
    }
    spec = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "containers": [switch, controller],
        "volumes": [_files(request), _certificates(request, ["controller.pem", "controller.key"])],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def worker_template(
    request: TrainingRequest, attempt: int, rank: str, place: Document, indexed: range | None = None
) -> Document:
    """Return the template of workers' pods; `rank` is shell text, `place` selects their nodes.

    `indexed` are the ranks of a Job's pods, by their completion index. Each pod then sees only its own certificate.
    """
    spec = request.spec
    own = _own_certificates(request, indexed) if indexed is not None else _certificates(request, _all_pairs(request))
    volumes = [_files(request), own, {"name": "state", "emptyDir": {}}]
    if spec.data is not None:
        volumes.append(_claim("data", spec.data.claim, read_only=True))
    if spec.checkpoint is not None:
        volumes.append(_claim("checkpoints", spec.checkpoint.claim, read_only=False))
    container = worker_container(request, rank)
    if indexed is not None:
        mount = next(volume for volume in container["volumeMounts"] if volume["name"] == "certificates")
        mount["subPathExpr"] = "$(JOB_COMPLETION_INDEX)"
    return {
        "metadata": {"labels": labels(request, attempt, WORKER)},
        "spec": {
            **place,
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "schedulingGates": [{"name": GATE}],
            "containers": [container],
            "volumes": volumes,
        },
    }


def worker_container(request: TrainingRequest, rank: str) -> Document:
    """Return the container of one worker. The container is ready when the worker has made its tunnel and looks for the
    controller."""
    spec = request.spec
    mounts = [_mount("files", FILES), _mount("certificates", CERTIFICATES), {"name": "state", "mountPath": STATE}]
    if spec.data is not None:
        mounts.append(_mount("data", spec.data.path))
    if spec.checkpoint is not None:
        own = f"{request.metadata.name}-{request.metadata.uid}"  # a claim may serve several requests
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINTS, "subPath": own})
    return {
        "name": "worker",
        "image": spec.worker_image,
        "command": ["sh", "-c", worker_command(request, rank)],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, *environment(request)],
        "resources": {"limits": {spec.resource: "1"}},
        "volumeMounts": mounts,
        "readinessProbe": {"exec": {"command": ["test", "-e", f"{STATE}/worker.jsonl"]}, "periodSeconds": 2},
        "securityContext": NETWORK,
    }


def worker_command(request: TrainingRequest, rank: str) -> str:
    """Return the command as shell text."""
    control = f"{name_of(request, Role.SERVICE, 0)}.{request.metadata.namespace}.svc"
    return (
        f"exec kofn worker {FILES}/job.toml --rank {rank} --switch {control}"
        f" --controller {control}:{CONTROLLER_PORT} --address $POD_IP --certs {CERTIFICATES}"
        f" --metrics {STATE}/worker.jsonl"
        + (f" --checkpoints {CHECKPOINTS}" if request.spec.checkpoint is not None else "")
    )


def environment(request: TrainingRequest) -> list[Document]:
    """Return the environment of a script."""
    data = request.spec.data
    return [] if data is None else [{"name": "KOFN_DATA", "value": data.path}]


def _files(request: TrainingRequest) -> Document:
    return {"name": "files", "configMap": {"name": name_of(request, Role.CONFIG, 0)}}


def _certificates(request: TrainingRequest, names: list[str]) -> Document:
    """Return a volume with only these certificates."""
    return _volume(request, [{"key": name, "path": name} for name in [*COMMON, *names]])


def _own_certificates(request: TrainingRequest, ranks: range) -> Document:
    """Return a volume with a folder for each rank. The folder's name is the rank's index: one template makes all pods,
    and each pod mounts the folder of its index."""
    items = [
        {"key": name, "path": f"{index}/{name}"} for index, rank in enumerate(ranks) for name in [*COMMON, *_pair(rank)]
    ]
    return _volume(request, items)


def _all_pairs(request: TrainingRequest) -> list[str]:
    return [name for rank in range(request.spec.accelerators) for name in _pair(rank)]


def _pair(rank: int) -> list[str]:
    return [f"job-1-worker-{rank}.{end}" for end in ("pem", "key")]


def _volume(request: TrainingRequest, items: list[Document]) -> Document:
    found = {"secretName": name_of(request, Role.SECRET, 0), "items": items, "defaultMode": 0o400}
    return {"name": "certificates", "secret": found}


def _claim(name: str, claim: str, *, read_only: bool) -> Document:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}


def _mount(name: str, path: str) -> Document:
    return {"name": name, "mountPath": path, "readOnly": True}
