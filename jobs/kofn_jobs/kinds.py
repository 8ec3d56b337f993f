"""The Kubernetes objects of a TrainingRequest, and the workload kinds (JobSet, MPIJob, TrainJob) that can run it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kofn_jobs.errors import RequestError
from kofn_jobs.request import TrainingSpec
from kofn_jobs.split import NodePart


class Role(Enum):
    """An object that is made for a request; the last two are made for each attempt."""

    CONFIG = "ConfigMap"
    SECRET = "Secret"
    SERVICE = "Service"
    CONTROL = "Pod"
    WORKLOAD = "workload"


OF_ATTEMPT = (Role.CONTROL, Role.WORKLOAD)


def attempt_of(role: Role, attempt: int) -> int:
    """Return the attempt for which an object is made, or 0 if the object serves all attempts."""
    return attempt if role in OF_ATTEMPT else 0


class AttemptOutcome(Enum):
    """The outcome of an attempt's workload."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadType:
    """A workload kind's names in the Kubernetes API; `done` is its condition of success."""

    group: str
    version: str
    plural: str
    done: str
    equal_parts: bool
    """Whether the workload's pods are alike, so that each node gets the same number of pods."""

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
"""The kinds of workloads, in order of preference."""


def choose(spec: TrainingSpec, parts: Sequence[NodePart], installed: Collection[str]) -> str:
    """Return the first installed kind that fits the parts; RequestError if none does."""
    equal = len({part.accelerators for part in parts}) == 1
    sizes = " + ".join(str(part.accelerators) for part in parts)
    wanted = [spec.workload] if spec.workload != "auto" else list(KINDS)
    able = [kind for kind in wanted if equal or not KINDS[kind].equal_parts]
    if not able:
        raise RequestError(f"spec.workload is {spec.workload}, which needs equal parts, got {sizes}: use JobSet")
    if found := [kind for kind in able if kind in installed]:
        return found[0]
    there = ", ".join(sorted(installed)) or "none"
    raise RequestError(f"parts {sizes} need {' or '.join(able)}; installed: {there}")


def outcome(kind: str, status: Mapping[str, Any]) -> tuple[AttemptOutcome | None, str]:
    """Return the outcome (None before the end), and the reason of a failure or ''."""
    held = {entry["type"]: entry for entry in status.get("conditions", ()) if entry.get("status") == "True"}
    if KINDS[kind].done in held:
        return AttemptOutcome.SUCCEEDED, ""
    if "Failed" in held:
        return AttemptOutcome.FAILED, str(held["Failed"].get("message") or held["Failed"].get("reason") or "")
    return None, ""
