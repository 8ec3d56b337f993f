"""Carries out actions as API calls.

An action may be repeated: making an object that exists, or removing an object that is missing, counts as done.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from lightkube.core.exceptions import ApiError
from lightkube.types import CascadeType, PatchType

from kofn_common.rpc.certificates import make_certificates
from kofn_jobs.api import CONFLICT, NOT_FOUND, Pod, Requests, decoded, resource
from kofn_jobs.conditions import with_conditions
from kofn_jobs.kinds import Role
from kofn_jobs.lifecycle import Action, AskPermission, Become, Make, Remove, Start
from kofn_jobs.manifests import Document, config_map, control_pod, name_of, secret, service
from kofn_jobs.operator.permissions import Permissions
from kofn_jobs.request import KIND, TrainingRequest, TrainingStatus
from kofn_jobs.workloads import workload

REFUSALS = (400, 403, 404, 422)
"""Answers of the API server that refuse an object: quota, pod security, a webhook, a field."""


class Hands:
    """Carries out the actions for any request.

    `foreign` has, by a request's uid, an object of another owner whose name the request needs. `refused` has, by a
    request's uid, the attempt for which the cluster refused an object, and the reason.
    """

    def __init__(self, client: Any, permissions: Permissions) -> None:
        self._client, self._permissions = client, permissions
        self.foreign: dict[str, str] = {}
        self.refused: dict[str, tuple[int, str]] = {}

    def refusal(self, request: TrainingRequest) -> str:
        """Return the reason why the cluster refused an object of the present attempt; empty without a refusal."""
        attempt, why = self.refused.get(request.metadata.uid, (0, ""))
        return why if attempt == request.status.attempt else ""

    async def carry_out(self, request: TrainingRequest, action: Action) -> bool:
        """Carry out an action and return whether it succeeded. Raise ApiError if the server refuses, unless the
        action is done already."""
        match action:
            case AskPermission():
                await self._permissions.ask(request)
            case Become(status):
                return await self._store(request, status)
            case Make(role, attempt):
                return await self._make(request, role, attempt)
            case Remove(role, attempt):
                await self.remove(request, role, attempt)
            case Start(pods):
                await asyncio.gather(*(self._start(request, pod) for pod in sorted(pods)))
        return True

    async def _store(self, request: TrainingRequest, status: TrainingStatus) -> bool:
        """Store the status, unless the request has changed since it was read; then the next actions
        are decided again."""
        stored = with_conditions(request.status, status)
        absent: Document = dict.fromkeys(TrainingStatus.__struct_encode_fields__)
        patch = {
            "metadata": {"resourceVersion": request.metadata.resource_version},
            "status": absent | msgspec.to_builtins(stored) | {"phase": stored.phase},
        }
        try:
            await self._client.patch(
                Requests.Status,
                request.metadata.name,
                patch,
                namespace=request.metadata.namespace,
                patch_type=PatchType.MERGE,
            )
        except ApiError as error:
            if error.status.code not in (CONFLICT, NOT_FOUND):
                raise
            return False
        return True

    async def _make(self, request: TrainingRequest, role: Role, attempt: int) -> bool:
        """Make an object. Return whether the object exists and belongs to the request."""
        document = await self._document(request, role, attempt)
        try:
            await self._client.create(decoded(document))
        except ApiError as error:
            if error.status.code in REFUSALS:
                why = (
                    f"the cluster refused {document['kind']} {name_of(request, role, attempt)}: {error.status.message}"
                )
                self.refused[request.metadata.uid] = request.status.attempt, why
                return False
            if error.status.code != CONFLICT:
                raise
            return await self._claim(request, role, attempt, document["kind"])
        return True

    async def _claim(self, request: TrainingRequest, role: Role, attempt: int, kind: str) -> bool:
        """Return whether the existing object of this name belongs to the request.

        An object of an earlier request with the same name does not belong to this request: Kubernetes is deleting that
        object. If the object has any other owner, `foreign` notes the object.
        """
        name = name_of(request, role, attempt)
        try:
            found = await self._client.get(
                resource(role, request.status.workload), name, namespace=request.metadata.namespace
            )
        except ApiError as error:
            if error.status.code != NOT_FOUND:
                raise
            return False
        owners = found.metadata.ownerReferences or ()
        if (KIND, request.metadata.name) not in {(owner.kind, owner.name) for owner in owners}:
            self.foreign[request.metadata.uid] = f"{kind} {name}"
        return request.metadata.uid in {owner.uid for owner in owners}

    async def _document(self, request: TrainingRequest, role: Role, attempt: int) -> Document:
        match role:
            case Role.CONFIG:
                return config_map(request)
            case Role.SECRET:
                return secret(request, await asyncio.to_thread(_certificates, request.spec.accelerators))
            case Role.SERVICE:
                return service(request)
            case Role.CONTROL:
                return control_pod(request, attempt)
            case Role.WORKLOAD:
                return workload(request, attempt)

    async def remove(self, request: TrainingRequest, role: Role, attempt: int) -> None:
        """Remove an object with its dependents."""
        try:
            await self._client.delete(
                resource(role, request.status.workload),
                name_of(request, role, attempt),
                namespace=request.metadata.namespace,
                cascade=CascadeType.BACKGROUND,
            )
        except ApiError as error:
            if error.status.code != NOT_FOUND:
                raise

    async def _start(self, request: TrainingRequest, pod: str) -> None:
        """Remove all scheduling gates of a worker's pod, which has no gates but kofn's."""
        patch = {"spec": {"schedulingGates": None}}
        try:
            await self._client.patch(Pod, pod, patch, namespace=request.metadata.namespace, patch_type=PatchType.MERGE)
        except ApiError as error:
            if error.status.code != NOT_FOUND:
                raise


def _certificates(workers: int) -> dict[str, bytes]:
    """Return the files of `kofn certs` for one job."""
    with tempfile.TemporaryDirectory() as folder:
        names = make_certificates(Path(folder) / "certs", {1: workers})
        return {name: (Path(folder) / "certs" / name).read_bytes() for name in names}
