"""The clients' streams: arbitration between them, and packets and digests between the primary and the data plane."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import SwitchError
from kofn_switch.p4runtime import packet_io
from kofn_switch.p4runtime.arbitration import Arbitration
from kofn_switch.p4runtime.pipeline import Pipeline
from kofn_switch.p4runtime.refusal import Refused, denied, invalid, refusal, unready
from kofn_switch.p4runtime.session import ClientSession, stream_error
from kofn_switch.state.entries import Digest, Entry

LOG = logging.getLogger(__name__)


class Streams:
    """The connected clients, and the pipeline that their messages refer to."""

    def __init__(self, engine: Engine, device_id: int) -> None:
        """Make the streams in a running asyncio loop."""
        self.pipeline: Pipeline | None = None
        self.arbitration = Arbitration(device_id, on_change=self._primary_changed)
        self._engine = engine
        self._sessions: set[ClientSession] = set()
        self._timer: asyncio.TimerHandle | None = None

    def required_pipeline(self) -> Pipeline:
        """Return the pipeline; FAILED_PRECONDITION before a controller has pushed one."""
        if self.pipeline is None:
            raise unready("No forwarding pipeline config set for this device: push one first")
        return self.pipeline

    async def serve(
        self, requests: AsyncIterator[p4r.StreamMessageRequest]
    ) -> AsyncGenerator[p4r.StreamMessageResponse, None]:
        """Serve one client's stream to its end. Raise Refused when the client's arbitration fails."""
        session = ClientSession()
        self._sessions.add(session)
        listener = asyncio.create_task(self._listen(session, requests))
        try:
            async for message in session.messages():
                yield message
            if session.refused is not None:
                raise session.refused
        finally:
            listener.cancel()
            self._sessions.discard(session)
            self.arbitration.leave(session.client)

    def take_digests(self, digests: list[Digest]) -> None:
        """Put digests from the data plane into lists; drop them while there is no primary."""
        if self.pipeline is None or self.arbitration.primary is None:
            return
        now_s = asyncio.get_running_loop().time()
        for digest in digests:
            for full in self.pipeline.digests.add(digest.name, digest.fields, now_s):
                self._to_primary(p4r.StreamMessageResponse(digest=full))
        self.schedule_digests()

    def take_idle(self, entries: list[Entry]) -> None:
        """Report entries that no packet hit for their idle timeout to the primary."""
        if self.pipeline is None or self.arbitration.primary is None:
            return
        message = p4r.StreamMessageResponse()
        message.idle_timeout_notification.timestamp = time.time_ns()
        tables = self.pipeline.entities.tables
        message.idle_timeout_notification.table_entry.extend(tables.key_message(entry) for entry in entries)
        self._to_primary(message)

    def take_packets(self, packets: list[bytes]) -> None:
        """Send packets from the CPU port to the primary."""
        if self.pipeline is None:
            return
        for packet in packets:
            try:
                message = packet_io.packet_in(self.pipeline.p4info, packet)
            except Refused as refused:
                LOG.warning("packet-in dropped: %s", refused)
            else:
                self._to_primary(p4r.StreamMessageResponse(packet=message))

    def schedule_digests(self) -> None:
        """Send the lists that are due, and wake up again for the next list."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.pipeline is None:
            return
        loop = asyncio.get_running_loop()
        for due in self.pipeline.digests.due(loop.time()):
            self._to_primary(p4r.StreamMessageResponse(digest=due))
        deadline_s = self.pipeline.digests.next_deadline_s()
        if deadline_s is not None:
            self._timer = loop.call_at(deadline_s, self.schedule_digests)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for session in self._sessions:
            session.close()

    async def _listen(self, session: ClientSession, requests: AsyncIterator[p4r.StreamMessageRequest]) -> None:
        """Carry out a client's messages until it ends its side, or its bid ends the stream."""
        refused = None
        try:
            async for request in requests:
                self._carry_out(session, request)
        except Refused as error:
            refused = error
        finally:
            session.close(refused)

    def _carry_out(self, session: ClientSession, request: p4r.StreamMessageRequest) -> None:
        if request.WhichOneof("update") == "arbitration":
            self.arbitration.update(session.client, request.arbitration)
            return
        try:
            self._carry_out_data(session, request)
        except SwitchError as error:
            session.offer(stream_error(request, refusal(error)))

    def _carry_out_data(self, session: ClientSession, request: p4r.StreamMessageRequest) -> None:
        kind = request.WhichOneof("update")
        if session.client is not self.arbitration.primary:
            raise denied(f"Not primary: only the primary may send {kind}; {self.arbitration.describe()}")
        pipeline = self.required_pipeline()
        match kind:
            case "packet":
                self._engine.send(packet_io.packet_out(pipeline.p4info, request.packet))
            case "digest_ack":
                pipeline.digests.acknowledge(request.digest_ack)
            case _:
                raise invalid(f"stream message {kind} is not known; arbitration, packet or digest_ack is")

    def _to_primary(self, message: p4r.StreamMessageResponse) -> None:
        for session in self._sessions:
            if session.client is self.arbitration.primary:
                session.offer(message)

    def _primary_changed(self) -> None:
        if self.pipeline is not None:
            self.pipeline.digests.restart()
