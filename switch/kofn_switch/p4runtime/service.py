"""The P4Runtime service: gRPC on one side, the engine on the other.

The service holds the pushed pipeline and the connected clients. The engine holds table entries, counters, groups and
registers. The service runs in one asyncio loop, except the compilation of a pushed program, which runs in a thread.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from finsy.proto import p4r, p4r_grpc

from kofn_common.nativebuild.errors import BuildError
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import SwitchError
from kofn_switch.identity import NAME, version
from kofn_switch.p4runtime.pipeline import Pipeline
from kofn_switch.p4runtime.refusal import (
    STATUS_DETAILS,
    Refused,
    batch_details,
    denied,
    invalid,
    not_found,
    refusal,
    summary,
    unimplemented,
)
from kofn_switch.p4runtime.saved import Saved
from kofn_switch.p4runtime.streams import Streams

LOG = logging.getLogger(__name__)
API_VERSION = "1.4.1"  # 1.5 brought backup replicas, which are not offered
READ_CHUNK = 256  # entities in one ReadResponse; a register's cell may have 256 bytes

Config = p4r.SetForwardingPipelineConfigRequest
Context = grpc.aio.ServicerContext[Any, Any]
NO_ROLE = "is not known; leave the role unset for full access"


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """All of P4Runtime's RPCs for one engine and one device id.

    service = P4RuntimeService(engine, device_id=0)
    p4r_grpc.add_P4RuntimeServicer_to_server(service, server)
    """

    def __init__(self, engine: Engine, device_id: int) -> None:
        """Make the service in a running asyncio loop."""
        self._engine = engine
        self._device_id = device_id
        self._lock = asyncio.Lock()  # one write or pipeline change at a time
        self._saved: Saved | None = None
        self.streams = Streams(engine, device_id)

    async def Capabilities(self, request: p4r.CapabilitiesRequest, context: Context) -> p4r.CapabilitiesResponse:  # noqa: N802 - gRPC's name
        """Return the API's version; the metadata has this switch's name and version."""
        if request.device_id not in (0, self._device_id):
            await _abort(context, not_found(f"device id {request.device_id} is not known; {self._device_id} is"))
        await context.send_initial_metadata(((NAME, version()),))
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    async def StreamChannel(  # noqa: N802
        self, request_iterator: AsyncIterator[p4r.StreamMessageRequest], context: Context
    ) -> AsyncIterator[p4r.StreamMessageResponse]:
        """Serve a client's session: arbitration, packets, digests."""
        try:
            async with aclosing(self.streams.serve(request_iterator)) as messages:
                async for message in messages:
                    yield message
        except Refused as refused:
            await _abort(context, refused)

    async def Write(self, request: p4r.WriteRequest, context: Context) -> p4r.WriteResponse:  # noqa: N802
        """Carry out all updates in order, even if some fail."""
        async with self._lock:
            try:
                self._check_write(request)
                write_all = self._required_writer()
            except Refused as refused:
                await _abort(context, refused)
            outcomes = write_all(request)
        self.streams.schedule_digests()
        if any(outcomes):
            await _abort_batch(context, outcomes)
        return p4r.WriteResponse()

    async def Read(self, request: p4r.ReadRequest, context: Context) -> AsyncIterator[p4r.ReadResponse]:  # noqa: N802
        """Yield the entities that the queries select, in chunks, and report failed queries at the end."""
        try:
            self._check_device(request.device_id)
            async with self._lock:  # not while the program changes
                pipeline = self._saved.pipeline if self._saved else self.streams.required_pipeline()
        except Refused as refused:
            await _abort(context, refused)
        outcomes: list[Refused | None] = []
        response = p4r.ReadResponse()
        for query in request.entities:
            outcome = None
            try:
                for entity in pipeline.entities.read(query):
                    response.entities.append(entity)
                    if len(response.entities) == READ_CHUNK:
                        yield response
                        response = p4r.ReadResponse()
                        await asyncio.sleep(0)  # other clients' requests in between
            except SwitchError as error:
                outcome = refusal(error)
            outcomes.append(outcome)
        if response.entities:
            yield response
        if any(outcomes):
            await _abort_batch(context, outcomes)

    async def GetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.GetForwardingPipelineConfigRequest, context: Context
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the pushed pipeline, or the requested parts of it."""
        try:
            self._check_device(request.device_id)
            config = self.streams.required_pipeline().answer(request.response_type)
        except Refused as refused:
            await _abort(context, refused)
        return p4r.GetForwardingPipelineConfigResponse(config=config)

    async def SetForwardingPipelineConfig(  # noqa: N802
        self, request: Config, context: Context
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify or load a program.

        The call runs to its end even if the client stops waiting, because the engine and the lookups change together.
        """
        try:
            await asyncio.shield(asyncio.create_task(self._set_pipeline(request)))
        except (SwitchError, BuildError) as error:
            LOG.warning("pipeline refused: %s", error)
            await _abort(context, refusal(error))
        return p4r.SetForwardingPipelineConfigResponse()

    async def _set_pipeline(self, request: Config) -> None:
        async with self._lock:
            self._check_device(request.device_id)
            self._check_primary(request)
            match request.action:
                case Config.VERIFY:
                    await asyncio.to_thread(self._verified, request.config, generated=True)
                case Config.VERIFY_AND_COMMIT:
                    await self._commit(request.config)
                case Config.RECONCILE_AND_COMMIT:
                    self._reconcile(request.config)
                case Config.VERIFY_AND_SAVE:
                    _check_config(request.config)
                    self._saved = await asyncio.to_thread(Saved, self._engine, request.config)
                case Config.COMMIT:
                    await self._commit_saved(request)
                case _:
                    raise invalid(f"action {request.action} is not known; VERIFY or VERIFY_AND_COMMIT is")

    async def _commit(self, config: p4r.ForwardingPipelineConfig) -> None:
        pipeline = await asyncio.to_thread(self._verified, config, generated=False)
        await asyncio.to_thread(self._engine.load, pipeline.document)
        self._run(pipeline)

    async def _commit_saved(self, request: Config) -> None:
        if request.HasField("config"):
            raise invalid("COMMIT takes the saved config: leave the config unset")
        if self._saved is None:
            raise not_found("no config is saved: VERIFY_AND_SAVE one first")
        self._run(await asyncio.to_thread(self._saved.commit, self._engine))

    def _run(self, pipeline: Pipeline) -> None:
        self.streams.pipeline, self._saved = pipeline, None
        LOG.info("pipeline loaded: %d tables", len(pipeline.p4info.tables))

    def _reconcile(self, config: p4r.ForwardingPipelineConfig) -> None:
        """Keep all state if `config` has the running program. Refuse another program, because state could be lost."""
        if not self.streams.required_pipeline().same_program(config):
            raise unimplemented("RECONCILE_AND_COMMIT of another program; VERIFY_AND_COMMIT is offered and clears all")
        self._saved = None

    def _verified(self, config: p4r.ForwardingPipelineConfig, *, generated: bool) -> Pipeline:
        _check_config(config)
        pipeline = Pipeline(self._engine, config)
        pipeline.check(generated=generated)
        return pipeline

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise not_found(f"device id {device_id} is not known; this switch has device id {self._device_id}")

    def _check_primary(self, request: p4r.WriteRequest | Config) -> None:
        if request.role:
            raise not_found(f"role {request.role!r} {NO_ROLE}")
        if not self.streams.arbitration.may_write(request):
            given = request.election_id.low | request.election_id.high << 64
            asked = f"election id {given}" if request.HasField("election_id") else "no election id"
            raise denied(f"Not primary: the request has {asked}; {self.streams.arbitration.describe()}")

    def _required_writer(self) -> Callable[[p4r.WriteRequest], list[Refused | None]]:
        """Return the function that carries updates out: the saved config's function, if a config is saved."""
        return self.streams.required_pipeline().entities.write_all if self._saved is None else self._saved.write_all

    def _check_write(self, request: p4r.WriteRequest) -> None:
        self._check_device(request.device_id)
        self._check_primary(request)
        if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
            name = p4r.WriteRequest.Atomicity.Name(request.atomicity)
            raise unimplemented(f"atomicity {name} is not offered; CONTINUE_ON_ERROR is")


def _check_config(config: p4r.ForwardingPipelineConfig) -> None:
    if not config.HasField("p4info") or not config.p4_device_config:
        raise invalid("the config needs both p4info and p4_device_config, p4c's JSON")


async def _abort(context: Context, refused: Refused) -> NoReturn:
    await context.abort(refused.code, str(refused))


async def _abort_batch(context: Context, outcomes: Sequence[Refused | None]) -> NoReturn:
    details = (STATUS_DETAILS, batch_details(outcomes))
    await context.abort(grpc.StatusCode.UNKNOWN, summary(outcomes), (details,))
