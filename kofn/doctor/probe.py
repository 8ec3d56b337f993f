"""A host's part of `kofn doctor`: a probe that attaches as a worker, contributes known numbers, and checks the sums.

`python -m kofn.doctor.probe PLAN` runs inside a host, with the plan as JSON. The probe writes a JSON line for each
step, and ends with the first failure. It uses the certificates, packets and socket of a worker.
"""

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import grpc
import msgspec

from kofn.doctor.probe_blocks import ProbeBlocks, ProbeError, ProbePlan
from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.failures import refused_handshake
from kofn_common.rpc.security import CONTROLLER, Credentials, channel, worker_name
from kofn_common.wire.sizes import WORDS_MAX

CALL_S = 15.0
ATTACH_S = 15.0

Attached: TypeAlias = "grpc.aio.StreamStreamCall[kofn_pb2.WorkerMessage, kofn_pb2.ControllerMessage]"


class ProbeStep(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the probe's output."""

    step: str
    ok: bool
    detail: str


async def reach(plan: ProbePlan, line: grpc.aio.Channel) -> str:
    """Check that the controller answers. Any answer shows that handshake and token are good."""
    begin = time.monotonic()
    try:
        await kofn_pb2_grpc.InspectorStub(line).GetStatus(kofn_pb2.StatusRequest(), timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
            reason = refused_handshake(error, secure=plan.certs is not None)
            raise ProbeError(f"{plan.controller}: {reason or _words(error)}") from None
    how = "plaintext" if plan.certs is None else "certificate and token"
    return f"{plan.controller} answers in {(time.monotonic() - begin) * 1e3:.0f} ms ({how})"


async def intrude(plan: ProbePlan, credentials: Credentials) -> str:
    """Check that the controller answers neither without a certificate nor without a token."""
    intruders = {
        "a certificate": (None, grpc.StatusCode.UNAVAILABLE),
        "a token": (dataclasses.replace(credentials, tokens={}), grpc.StatusCode.UNAUTHENTICATED),
    }
    for lacking, (shown, expected) in intruders.items():
        async with channel(shown, plan.controller, CONTROLLER) as line:
            try:
                await kofn_pb2_grpc.InspectorStub(line).GetStatus(kofn_pb2.StatusRequest(), timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is expected:
                    continue
                raise ProbeError(f"without {lacking}: {_words(error)} instead of {expected.name}") from None
            raise ProbeError(f"without {lacking} the controller answered")
    return f"refused without {' and without '.join(intruders)}"


async def attach(plan: ProbePlan, line: grpc.aio.Channel) -> tuple[Attached, kofn_pb2.Welcome]:
    """Send Hello as a worker does, and wait for the Welcome, which comes when all workers have sent Hello."""
    call = kofn_pb2_grpc.CoordinatorStub(line).Attach()
    hello = kofn_pb2.Hello(job=plan.job, rank=plan.rank, peer_address="127.0.0.1:1")
    try:
        async with asyncio.timeout(ATTACH_S):
            await call.write(kofn_pb2.WorkerMessage(hello=hello))
            while isinstance(message := await call.read(), kofn_pb2.ControllerMessage):
                if message.HasField("welcome"):
                    ready = kofn_pb2.Ready(iteration=message.welcome.first_iteration)
                    await call.write(kofn_pb2.WorkerMessage(ready=ready))
                    return call, message.welcome
        raise ProbeError("the controller ended the stream before its Welcome")
    except TimeoutError:
        raise ProbeError(
            f"no Welcome in {ATTACH_S:.0f} s: it comes once all {plan.workers} workers have attached"
        ) from None
    except grpc.aio.AioRpcError as error:
        raise ProbeError(_words(error)) from None


async def take_leave(call: Attached) -> None:
    """Finish, and stay until all probes have finished. An earlier end would lower k for the other probes."""
    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):  # the checks are done
        await call.write(kofn_pb2.WorkerMessage(finished=kofn_pb2.Finished(reason="target")))
        async with asyncio.timeout(ATTACH_S):
            while isinstance(message := await call.read(), kofn_pb2.ControllerMessage):
                if message.HasField("stop"):
                    return


async def probe(plan: ProbePlan) -> None:
    """Do all steps. Raise ProbeError at the first failure."""
    credentials = Credentials.load(plan.certs, worker_name(plan.job, plan.rank), [plan.job])
    async with channel(credentials, plan.controller, CONTROLLER) as line:
        await step("gRPC", lambda: reach(plan, line))
        if credentials is not None:
            await step("access", lambda: intrude(plan, credentials))
        call, welcome = await attach_step(plan, line)
        exchange = ProbeBlocks(plan=plan, generation=welcome.generation, iteration=welcome.first_iteration)
        try:
            alone, small, large = plan.rank, plan.workers, plan.workers + 1  # the numbers of three blocks
            await step("contribution", lambda: exchange.block(alone, words=1, alone=True))
            await step("aggregation", lambda: exchange.block(small, words=1, alone=False))
            await step("largest packet", lambda: exchange.block(large, words=WORDS_MAX, alone=False))
            await take_leave(call)
        finally:
            exchange.close()


async def attach_step(plan: ProbePlan, line: grpc.aio.Channel) -> tuple[Attached, kofn_pb2.Welcome]:
    attached: list[tuple[Attached, kofn_pb2.Welcome]] = []

    async def attaching() -> str:
        attached.append(await attach(plan, line))
        welcome = attached[0][1]
        if (welcome.workers, welcome.k) != (plan.workers, plan.workers):
            raise ProbeError(f"k = {welcome.k} of {welcome.workers} workers: all {plan.workers} were expected")
        return f"k = {welcome.k} of {welcome.workers} workers, generation {welcome.generation}"

    await step("attach", attaching)
    return attached[0]


async def step(name: str, work: Callable[[], Awaitable[str]]) -> None:
    """Do a step and print its result."""
    try:
        line = ProbeStep(step=name, ok=True, detail=await work())
    except (ProbeError, OSError) as error:
        print(msgspec.json.encode(ProbeStep(step=name, ok=False, detail=str(error))).decode(), flush=True)
        raise ProbeError(str(error)) from error
    print(msgspec.json.encode(line).decode(), flush=True)


def _words(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def main() -> int:
    """Return 0 if all steps are good."""
    plan = msgspec.json.decode(sys.argv[1], type=ProbePlan, dec_hook=lambda kind, value: kind(value))
    try:
        asyncio.run(probe(plan))
    except ProbeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
