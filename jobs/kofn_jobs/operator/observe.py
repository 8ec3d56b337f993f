"""The observed state of a request, from kopf's indices, without API calls."""

import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from lightkube.utils.quantity import parse_quantity

from kofn_jobs.kinds import KINDS, AttemptOutcome, Role, outcome
from kofn_jobs.lifecycle import Observed
from kofn_jobs.manifests import ATTEMPT_LABEL, CONTROL, GATE, ROLE_LABEL, WORKER, name_of
from kofn_jobs.request import TrainingRequest
from kofn_jobs.split import Capacity

IN_ORDER = ("ContainerCreating", "PodInitializing")
"""Reasons for which a container waits in normal operation."""


class SeenPod(msgspec.Struct, frozen=True):
    """The relevant part of a pod of a request."""

    name: str
    attempt: int
    role: str
    gated: bool
    ready: bool
    address: str = ""
    trouble: str = ""
    """The reason why the pod cannot start; empty: none is known."""


class SeenObject(msgspec.Struct, frozen=True):
    """Any other object of a request."""

    role: Role
    attempt: int
    outcome: AttemptOutcome | None = None
    reason: str = ""


class SeenNode(msgspec.Struct, frozen=True):
    """A node that takes pods, and its resources."""

    name: str
    allocatable: dict[str, str]


class SeenRefusal(msgspec.Struct, frozen=True):
    """An event with the reason why the cluster makes no pods of a Job."""

    namespace: str
    job: str
    message: str


def seen_pod(name: str, labels: Mapping[str, str], spec: Mapping[str, Any], status: Mapping[str, Any]) -> SeenPod:
    """Return the relevant part of a pod's document."""
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions", ())
    )
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
    """Return why no node takes the pod, or why one of its containers does not start; empty without trouble."""
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return f"{name}: Unschedulable: {condition.get('message', '')}"
    for container in status.get("containerStatuses", ()):
        reason = container.get("state", {}).get("waiting", {}).get("reason", "")
        if reason and reason not in IN_ORDER:
            # The kubelet reports ErrImagePull and ImagePullBackOff alternately.
            image = container.get("image") or container["name"]
            return f"{name}: {reason.replace('ErrImagePull', 'ImagePullBackOff')} of {image}"
    return ""


def seen_object(kind: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> SeenObject:
    """Return the relevant part of an object's document."""
    attempt = int(labels.get(ATTEMPT_LABEL, 0))
    if kind not in KINDS:
        return SeenObject(Role(kind), attempt)
    return SeenObject(Role.WORKLOAD, attempt, *outcome(kind, status))


def seen_node(name: str, spec: Mapping[str, Any], status: Mapping[str, Any], labels: Mapping[str, str]) -> SeenNode:
    """Return the relevant part of a node's document. The part has no resources unless the node is ready and takes
    pods."""
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions", ())
    )
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
    """Combine all observations of a request."""
    attempt = request.status.attempt
    every, there = list(pods), list(objects)
    ours = [pod for pod in every if pod.attempt == attempt]
    workers = [pod for pod in ours if pod.role == WORKER]
    controls = {(Role.CONTROL, pod.attempt) for pod in every if pod.role == CONTROL}
    jobs = f"{name_of(request, Role.WORKLOAD, attempt)}-"
    troubles = [pod.trouble for pod in ours if pod.trouble] + [
        f"{refusal.job}: {refusal.message}"
        for refusal in refusals
        if refusal.namespace == request.metadata.namespace and refusal.job.startswith(jobs)
    ]
    current = [seen for seen in there if seen.role is Role.WORKLOAD and seen.attempt == attempt]
    return Observed(
        permission=permission,
        capacities=capacities(nodes, request.spec.resource),
        installed=frozenset(installed),
        made=frozenset((seen.role, seen.attempt) for seen in there) | controls,
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
    """Return the amount of a resource on each node, by the node's name. Nodes without the resource are left out."""
    counted = [(node.name, _count(node.allocatable.get(resource, "0"))) for node in nodes]
    return tuple(Capacity(name, count) for name, count in sorted(counted) if count)


def _count(quantity: str) -> int:
    """Return the whole number in a Kubernetes quantity, such as `4`, `3920m` or `1k`."""
    return math.floor(parse_quantity(quantity) or 0)
