"""The slot model as a switch on loopback."""

import socket
import threading
from collections.abc import Callable, Mapping

from kofn_common.wire import packet as wire
from kofn_host.transport.udp import udp_socket
from tests.host.protocol.specification.slot_model import SlotModel


class UdpSwitch:
    """The slot model behind a UDP socket; `lose`: percentage of lost packets in either direction; `others`: models by
    job.
    """

    def __init__(
        self,
        model: SlotModel,
        own: str,
        address: Callable[[int], str],
        lose: int = 0,
        others: Mapping[int, SlotModel] | None = None,
    ) -> None:
        self.model, self.own, self.address, self.lose, self.count = model, own, address, lose, 0
        self.others = others or {}
        self.kept: dict[int, list[bytes]] = {}
        """Packets held back for these workers."""
        self.socket = udp_socket(self.own, wire.PORT)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def lost(self) -> bool:
        self.count += 1
        return self.count * 37 % 100 < self.lose

    def serve(self) -> None:
        while (datagram := self.socket.recv(65535)) != b"stop":
            header = wire.decode_header(datagram)
            if self.lost():
                continue
            model = self.others.get(header.job, self.model)
            for rank, answer, values in model.handle(header, datagram[wire.HEADER_BYTES :]):
                if not self.lost():
                    self.send(rank, wire.encode(answer._replace(words=len(values) // 256), values))

    def send(self, rank: int, packet: bytes) -> None:
        if rank in self.kept:
            self.kept[rank].append(packet)
        else:
            self.socket.sendto(packet, (self.address(rank), wire.PORT))

    def send_kept(self, rank: int) -> None:
        """Send the packets held back for a worker, and hold back no more."""
        for packet in self.kept.pop(rank):
            self.send(rank, packet)

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"stop", (self.own, wire.PORT))
        self.thread.join()
        self.socket.close()
