"""The objects of a request; the kinds of the API that run workers, and the parts that each of them takes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kofn.jobs.errors import RequestError
from kofn.jobs.request import TrainingSpec
from kofn.jobs.split import NodePart


class Role(Enum):
    """An object that is made for a request; the last two are made for each attempt."""

    CONFIG = "ConfigMap"
    SECRET = "Secret"
    SERVICE = "Service"
    CONTROL = "Pod"
    WORKLOAD = "workload"


OF_ATTEMPT = (Role.CONTROL, Role.WORKLOAD)


def attempt_of(role: Role, attempt: int) -> int:
    """Return the attempt that an object is made for; 0: all."""
    return attempt if role in OF_ATTEMPT else 0


class AttemptOutcome(Enum):
    """The outcome of an attempt's workload."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadType:
    """The kind's names in the API; `done` is the condition of success."""

    group: str
    version: str
    plural: str
    done: str
    equal_parts: bool
    """All its pods are of one kind, and can only be spread evenly over nodes."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


KINDS = {
    "JobSet": WorkloadType(
        group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets", done="Completed", equal_parts=False
    ),
    "MPIJob": WorkloadType(
        group="kubeflow.org", version="v2beta1", plural="mpijobs", done="Succeeded", equal_parts=True
    ),
    "TrainJob": WorkloadType(
        group="trainer.kubeflow.org", version="v1alpha1", plural="trainjobs", done="Complete", equal_parts=True
    ),
}
"""In order of preference."""


def choose(spec: TrainingSpec, parts: Sequence[NodePart], installed: Collection[str]) -> str:
    """Return the kind for these parts. Raise RequestError where none in the cluster fits."""
    equal = len({part.accelerators for part in parts}) == 1
    sizes = " + ".join(str(part.accelerators) for part in parts)
    wanted = [spec.workload] if spec.workload != "auto" else list(KINDS)
    able = [kind for kind in wanted if equal or not KINDS[kind].equal_parts]
    if not able:
        raise RequestError(f"spec.workload is {spec.workload}, which takes equal parts: these are {sizes}; JobSet can")
    if found := [kind for kind in able if kind in installed]:
        return found[0]
    there = ", ".join(sorted(installed)) or "none of these"
    raise RequestError(f"{sizes}: {' or '.join(able)} is needed, and {there} is in the cluster")


def outcome(kind: str, status: Mapping[str, Any]) -> tuple[AttemptOutcome | None, str]:
    """Return the outcome, None before the end, and the reason of a failure."""
    held = {entry["type"]: entry for entry in status.get("conditions", ()) if entry.get("status") == "True"}
    if KINDS[kind].done in held:
        return AttemptOutcome.SUCCEEDED, ""
    if "Failed" in held:
        return AttemptOutcome.FAILED, str(held["Failed"].get("message") or held["Failed"].get("reason") or "")
    return None, ""
