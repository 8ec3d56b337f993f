"""The controller with certificates: identities that may attach, ask and change."""

import asyncio
import dataclasses
from pathlib import Path

import grpc
import pytest

from kofn_common.config.job import JobSection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.security import CONTROLLER, OPERATOR, Credentials, channel, worker_name
from tests.common.rpc.lab import tokenless
from tests.controller.harness import serving, setup

JOBS = {1: 2, 2: 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secure") / "certs"
    make_certificates(path, JOBS)
    return path


def load(folder: Path, name: str, *jobs: int) -> Credentials:
    credentials = Credentials.load(folder, name, jobs)
    assert credentials is not None
    return credentials


async def refusal(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


def test_workers_attach_under_their_own_identity_only(folder: Path) -> None:
    async def scenario() -> None:
        sessions = [setup(JobSection(id=job, workers=workers)) for job, workers in JOBS.items()]
        async with serving(*sessions, credentials=load(folder, CONTROLLER, 1, 2)) as control:
            own = load(folder, worker_name(1, 0), 1)
            async with channel(own, control.address, CONTROLLER) as line:
                for rank, job in ((1, 1), (0, 2)):
                    other = control.worker(rank, job=job, line=line)
                    await other.hello()
                    code, words = await refusal(other.next())
                    assert code is grpc.StatusCode.PERMISSION_DENIED
                    assert words == (
                        f"the caller must be worker {rank} of job {job}, your certificate is worker 0's of job 1"
                    )
                assert not any(session.members.attached for session in sessions)
                itself = control.worker(0, line=line)
                await itself.hello()
                async with channel(load(folder, worker_name(1, 1), 1), control.address, CONTROLLER) as second:
                    mate = control.worker(1, line=second)
                    await mate.hello()
                    assert (await itself.expect("welcome")).workers == 2
            stolen = dataclasses.replace(load(folder, worker_name(2, 0), 2), tokens=own.tokens)
            async with channel(stolen, control.address, CONTROLLER) as line:
                mixed = control.worker(0, job=2, line=line)
                await mixed.hello()
                assert (await refusal(mixed.next()))[
                    1
                ] == "your certificate is worker 0's of job 2, but your token is of job 1"

    asyncio.run(scenario())


def test_operators_may_ask_and_change_and_workers_may_not(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(setup(JobSection(workers=2)), credentials=load(folder, CONTROLLER, 1)) as control:
            operator = load(folder, OPERATOR)
            async with channel(operator, control.address, CONTROLLER) as line:
                inspector = kofn_pb2_grpc.InspectorStub(line)
                assert (await inspector.GetStatus(pb.StatusRequest())).workers == 2
                assert (await inspector.SetObjective(pb.Objective(objective="fixed:1"))).k == 1
            async with channel(load(folder, worker_name(1, 0), 1), control.address, CONTROLLER) as line:
                inspector = kofn_pb2_grpc.InspectorStub(line)
                for call in (inspector.GetStatus(pb.StatusRequest()), inspector.SetObjective(pb.Objective())):
                    assert (await refusal(call))[0] is grpc.StatusCode.PERMISSION_DENIED
            async with tokenless(operator, control.address) as line:
                inspector = kofn_pb2_grpc.InspectorStub(line)
                for call in (inspector.GetStatus(pb.StatusRequest()), inspector.SetObjective(pb.Objective())):
                    assert (await refusal(call))[0] is grpc.StatusCode.UNAUTHENTICATED
                unknown = control.worker(0, line=line)
                await unknown.hello()
                assert (await refusal(unknown.next()))[0] is grpc.StatusCode.UNAUTHENTICATED
            plain = kofn_pb2_grpc.InspectorStub(control.channel)
            assert (await refusal(plain.GetStatus(pb.StatusRequest())))[0] is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())
