"""What is seen of a request, from the indices that kopf keeps: no API call."""

import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from lightkube.utils.quantity import parse_quantity

from kofn.jobs.kinds import KINDS, AttemptOutcome, Role, outcome
from kofn.jobs.lifecycle import Observed
from kofn.jobs.manifests import ATTEMPT_LABEL, CONTROL, GATE, ROLE_LABEL, WORKER, name_of
from kofn.jobs.request import TrainingRequest
from kofn.jobs.split import Capacity

IN_ORDER = ("ContainerCreating", "PodInitializing")
"""Reasons for which a container waits although nothing is wrong."""


class SeenPod(msgspec.Struct, frozen=True):
    """What matters of a pod of a request."""

    name: str
    attempt: int
    role: str
    gated: bool
    ready: bool
    address: str = ""
    trouble: str = ""
    """Why it cannot start; empty: nothing is known to be wrong."""


class SeenObject(msgspec.Struct, frozen=True):
    """Any other object of a request."""

    role: Role
    attempt: int
    outcome: AttemptOutcome | None = None
    reason: str = ""


class SeenNode(msgspec.Struct, frozen=True):
    """A node that takes pods, and what it has."""

    name: str
    allocatable: dict[str, str]


class SeenRefusal(msgspec.Struct, frozen=True):
    """An event that says why the cluster makes no pods of a Job."""

    namespace: str
    job: str
    message: str


def seen_pod(name: str, labels: Mapping[str, str], spec: Mapping[str, Any], status: Mapping[str, Any]) -> SeenPod:
    """Of a pod's document."""
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    return SeenPod(
        name=name,
        attempt=int(labels.get(ATTEMPT_LABEL, 0)),
        role=labels.get(ROLE_LABEL, ""),
        gated=any(gate["name"] == GATE for gate in spec.get("schedulingGates", ())),
        ready=ready or status.get("phase") == "Succeeded",
        address=status.get("podIP", ""),
        trouble=_trouble(name, status),
    )


def _trouble(name: str, status: Mapping[str, Any]) -> str:
    """Return why no node takes the pod, or why a container of it does not start; empty where nothing is wrong."""
    for each in status.get("conditions", ()):
        if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable":
            return f"{name}: Unschedulable: {each.get('message', '')}"
    for each in status.get("containerStatuses", ()):
        reason = each.get("state", {}).get("waiting", {}).get("reason", "")
        if reason and reason not in IN_ORDER:
            # The kubelet says the two in turns.
            return (
                f"{name}: {reason.replace('ErrImagePull', 'ImagePullBackOff')} of {each.get('image') or each['name']}"
            )
    return ""


def seen_object(kind: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> SeenObject:
    """Of an object's document."""
    attempt = int(labels.get(ATTEMPT_LABEL, 0))
    if kind not in KINDS:
        return SeenObject(Role(kind), attempt)
    return SeenObject(Role.WORKLOAD, attempt, *outcome(kind, status))


def seen_node(name: str, spec: Mapping[str, Any], status: Mapping[str, Any], labels: Mapping[str, str]) -> SeenNode:
    """Of a node's document; nothing to give unless it is ready and takes pods."""
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    usable = ready and not spec.get("unschedulable")
    return SeenNode(labels.get("kubernetes.io/hostname", name), dict(status.get("allocatable", {})) if usable else {})


def observed(
    request: TrainingRequest,
    *,
    pods: Iterable[SeenPod],
    objects: Iterable[SeenObject],
    nodes: Iterable[SeenNode],
    installed: Iterable[str],
    refusals: Iterable[SeenRefusal],
    permission: bool | None,
    foreign: str = "",
    refused: str = "",
) -> Observed:
    """All of it."""
    attempt = request.status.attempt
    every, there = list(pods), list(objects)
    ours = [pod for pod in every if pod.attempt == attempt]
    workers = [pod for pod in ours if pod.role == WORKER]
    controls = {(Role.CONTROL, pod.attempt) for pod in every if pod.role == CONTROL}
    jobs = f"{name_of(request, Role.WORKLOAD, attempt)}-"
    troubles = [pod.trouble for pod in ours if pod.trouble] + [
        f"{each.job}: {each.message}"
        for each in refusals
        if each.namespace == request.metadata.namespace and each.job.startswith(jobs)
    ]
    current = [each for each in there if each.role is Role.WORKLOAD and each.attempt == attempt]
    return Observed(
        permission=permission,
        capacities=capacities(nodes, request.spec.resource),
        installed=frozenset(installed),
        made=frozenset((each.role, each.attempt) for each in there) | controls,
        foreign=foreign,
        refused=refused,
        trouble=min(troubles, default=""),
        control_ready=any(pod.ready for pod in ours if pod.role == CONTROL),
        workers=frozenset(pod.name for pod in workers),
        gated=frozenset(pod.name for pod in workers if pod.gated),
        ready=sum(pod.ready for pod in workers),
        outcome=current[0].outcome if current else None,
        reason=current[0].reason if current else "",
        now=datetime.datetime.now(datetime.UTC),
    )


def capacities(nodes: Iterable[SeenNode], resource: str) -> tuple[Capacity, ...]:
    """How many of a resource each node can run, by name; nodes without any are left out."""
    counted = [(node.name, _count(node.allocatable.get(resource, "0"))) for node in nodes]
    return tuple(Capacity(name, count) for name, count in sorted(counted) if count)


def _count(quantity: str) -> int:
    """Return the whole ones of a Kubernetes quantity, such as `4`, `3920m` or `1k`."""
    return math.floor(parse_quantity(quantity) or 0)
