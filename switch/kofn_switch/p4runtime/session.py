"""One client's stream: its place in the arbitration and the messages on their way to the client."""

import asyncio
import logging
from collections.abc import AsyncIterator

from finsy.proto import p4r

from kofn_switch.p4runtime.arbitration import Client
from kofn_switch.p4runtime.refusal import SPACE, Refused, number

LOG = logging.getLogger(__name__)
BACKLOG_MAX = 4096  # most messages that wait for a slow client; more are dropped, except those about arbitration


class ClientSession:
    """Messages to one client, in order; they end after `close`."""

    def __init__(self) -> None:
        """Make the session in a running asyncio loop."""
        self.client = Client(tell=self.tell)
        self.refused: Refused | None = None  # why this side ended the stream, if it did
        self.dropped = 0
        self._outbox: asyncio.Queue[p4r.StreamMessageResponse | None] = asyncio.Queue()

    def tell(self, message: p4r.StreamMessageResponse) -> None:
        """Send a message that must not be lost: arbitration."""
        self._outbox.put_nowait(message)

    def offer(self, message: p4r.StreamMessageResponse) -> None:
        """Send a packet, a digest list or an error, or drop it when the client is far behind."""
        if self._outbox.qsize() < BACKLOG_MAX:
            self._outbox.put_nowait(message)
            return
        self.dropped += 1
        if self.dropped.bit_count() == 1:  # at 1, 2, 4, 8, ... rather than for each packet
            LOG.warning("a client does not read its stream: %d messages dropped", self.dropped)

    def close(self, refused: Refused | None = None) -> None:
        """End the stream after the messages in the outbox."""
        self.refused = refused
        self._outbox.put_nowait(None)

    async def messages(self) -> AsyncIterator[p4r.StreamMessageResponse]:
        """Yield the messages to send, until closed."""
        while (message := await self._outbox.get()) is not None:
            yield message


def stream_error(request: p4r.StreamMessageRequest, refused: Refused) -> p4r.StreamMessageResponse:
    """Return the answer to a packet-out or digest acknowledgement that failed."""
    error = p4r.StreamError(canonical_code=number(refused.code), message=str(refused), space=SPACE)
    match request.WhichOneof("update"):
        case "packet":
            error.packet_out.packet_out.metadata.extend(request.packet.metadata)
        case "digest_ack":
            error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
        case _:
            error.other.SetInParent()
    return p4r.StreamMessageResponse(error=error)
