"""The controller's status of a running request."""

import asyncio
import base64
from pathlib import Path
from typing import Any

from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.security import CONTROLLER, Credentials, add_port, grpc_server
from kofn_jobs.operator.progress import Progress, ask_controller, credentials_of

STATUS = kofn_pb2.Status(
    k=3,
    iteration=40,
    worker=[kofn_pb2.WorkerStatus(rank=rank, late_in_a_row=rank // 3) for rank in range(4)],
)


class Controller(kofn_pb2_grpc.InspectorServicer):
    def __init__(self, status: kofn_pb2.Status) -> None:
        self._status = status

    async def GetStatus(self, request: Any, context: Any) -> kofn_pb2.Status:  # noqa: N802
        return self._status


async def asked(folder: Path, status: kofn_pb2.Status) -> Progress | None:
    """Ask a controller with these certificates, as an operator that has them from a Secret."""
    server = grpc_server(Credentials.load(folder, CONTROLLER))
    kofn_pb2_grpc.add_InspectorServicer_to_server(Controller(status), server)  # type: ignore[abstract]
    port = add_port(server, "127.0.0.1:0", Credentials.load(folder, CONTROLLER))
    await server.start()
    data = {path.name: base64.b64encode(path.read_bytes()).decode() for path in folder.iterdir()}
    try:
        return await ask_controller(credentials_of(data), f"127.0.0.1:{port}")
    finally:
        await server.stop(0)


def test_k_iteration_and_late_workers_are_reported(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", {1: 4})
    assert asyncio.run(asked(tmp_path / "certs", STATUS)) == Progress(3, 40, (3,))
    measured = kofn_pb2.Status(k=3, iteration=40, metric=0.0)
    assert asyncio.run(asked(tmp_path / "certs", measured)) == Progress(3, 40, (), 0.0)


def test_no_progress_before_the_first_report(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", {1: 4})
    assert asyncio.run(asked(tmp_path / "certs", kofn_pb2.Status(k=4))) is None


def test_absent_controller_is_no_error(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", {1: 4})
    data = {path.name: base64.b64encode(path.read_bytes()).decode() for path in (tmp_path / "certs").iterdir()}
    assert asyncio.run(ask_controller(credentials_of(data), "127.0.0.1:1")) is None
