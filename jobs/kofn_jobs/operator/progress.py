"""Asks a training's controller for the progress, with the operator's certificate from the request's Secret."""

import base64
from collections.abc import Mapping
from typing import Any

import grpc
import msgspec

from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.security import CONTROLLER, OPERATOR, Credentials, channel
from kofn_jobs.api import NOT_FOUND, ApiError, Secret
from kofn_jobs.kinds import Role
from kofn_jobs.manifests import CONTROLLER_PORT, name_of
from kofn_jobs.request import TrainingRequest

TIMEOUT_S = 2.0


class Progress(msgspec.Struct, frozen=True):
    """The progress of a training. `late_workers` are the ranks of the workers that were late in their latest
    iteration; `metric` is the value of the workload's metric, if there is one."""

    k: int
    iteration: int
    late_workers: tuple[int, ...]
    metric: float | None = None


async def ask_controller(credentials: Credentials, address: str) -> Progress | None:
    """Return the progress; None if the controller does not answer, or no worker has reported yet."""
    try:
        async with channel(credentials, address, CONTROLLER) as line:
            inspector = kofn_pb2_grpc.InspectorStub(line)
            status = await inspector.GetStatus(kofn_pb2.StatusRequest(), timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return None
    late = tuple(worker.rank for worker in status.worker if worker.late_in_a_row)
    metric = status.metric if status.HasField("metric") else None
    return Progress(status.k, status.iteration, late, metric) if status.iteration else None


def credentials_of(data: Mapping[str, str]) -> Credentials:
    """Return the credentials in a Secret that the operator has made."""
    files = {name: base64.b64decode(text) for name, text in data.items()}
    return Credentials(
        name=OPERATOR,
        authority=files["ca.pem"],
        certificate=files[f"{OPERATOR}.pem"],
        key=files[f"{OPERATOR}.key"],
        tokens={1: files["job-1.token"].decode().strip()},
    )


class Followed:
    """The credentials of running requests, by uid; `client` is lightkube's."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._credentials: dict[str, Credentials] = {}

    async def ask(self, request: TrainingRequest, address: str) -> Progress | None:
        """Make one call to a request's controller; the first call reads the Secret."""
        uid = request.metadata.uid
        if uid not in self._credentials:
            found = await self._secret(request)
            if found is None:
                return None
            self._credentials[uid] = found
        return await ask_controller(self._credentials[uid], f"{address}:{CONTROLLER_PORT}")

    def forget(self, uid: str) -> None:
        self._credentials.pop(uid, None)

    async def _secret(self, request: TrainingRequest) -> Credentials | None:
        name = name_of(request, Role.SECRET, 0)
        try:
            secret = await self._client.get(Secret, name, namespace=request.metadata.namespace)
        except ApiError as error:
            if error.status.code != NOT_FOUND:
                raise
            return None
        return credentials_of(secret.data or {})
