"""A way out of a user namespace, for machines where kofn may not be root: Slurm's nodes, for example.

    way.py ADDRESS PORT[,PORT]... COMMAND [ARGUMENT]...

COMMAND runs as root of new user and network namespaces, where it may make interfaces and namespaces but reaches
nothing. This process relays what COMMAND's VXLAN tunnels send and receive:

    namespace of COMMAND                                   network of this machine
      tunnels -> IP packets at the TUN device `lan0` -> relay -> UDP port 19277 of ADDRESS -> other machines

The datagrams are those of the kernel's tunnels, so the other machines see no difference. TCP connections to the PORTs
of this machine's loopback arrive at the same ports of the namespace's loopback; 0 is no port.
"""

import contextlib
import ctypes
import fcntl
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading

from errors import NetworkError
from interfaces import address_mtu
from namespaces import die_with_parent
from parts import TUNNEL_PORT

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DEVICE = "lan0"
IP_BYTES, UDP_BYTES = 20, 8
BUFFER_BYTES = 8 << 20
BATCH = 64
"""The most datagrams that are relayed in one direction before the other one has its turn."""

COPY_BYTES = 1 << 16

RELAYED = "KOFN_RELAYED"
"""The environment variable by which COMMAND knows that it is behind a relay."""


class DatagramRelay:
    """Relays datagrams between the TUN device and a UDP socket of the machine's own network."""

    def __init__(self, address: str) -> None:
        """Open the socket; the namespace that this process is in now is the machine's."""
        self._address = socket.inet_aton(address)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        try:
            self._socket.bind((address, TUNNEL_PORT))
        except OSError as error:
            raise NetworkError(f"UDP port {TUNNEL_PORT} of {address} must be free: {error.strerror}") from error
        self._socket.setblocking(False)
        self._device = -1

    def open(self) -> None:
        """Make the device, in the namespace that this process is in now."""
        try:
            self._device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(self._device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        except OSError as error:
            raise NetworkError(f"/dev/net/tun must be there for everyone: {error.strerror}") from error

    def run(self, child: "subprocess.Popen[bytes]") -> None:
        """DatagramRelay for ever; end the child if that fails."""
        try:
            self._relay()
        finally:
            child.terminate()

    def _relay(self) -> None:
        with selectors.EpollSelector() as waiting:
            waiting.register(self._device, selectors.EVENT_READ, self._out)
            waiting.register(self._socket, selectors.EVENT_READ, self._in)
            while True:
                for key, _ in waiting.select():
                    with contextlib.suppress(BlockingIOError):
                        for _ in range(BATCH):
                            key.data()

    def _out(self) -> None:
        """Send one datagram of the namespace's tunnels."""
        packet = os.read(self._device, COPY_BYTES)
        header = (packet[0] & 15) * 4
        if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_UDP:
            with contextlib.suppress(OSError):  # as in any network, a datagram may be lost
                self._socket.sendto(packet[header + UDP_BYTES :], (socket.inet_ntoa(packet[16:20]), TUNNEL_PORT))

    def _in(self) -> None:
        """Let one datagram into the namespace."""
        data, (peer, port) = self._socket.recvfrom(COPY_BYTES)
        length = IP_BYTES + UDP_BYTES + len(data)
        head = struct.pack("!BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, socket.IPPROTO_UDP, 0)
        head += socket.inet_aton(peer) + self._address
        total = sum(struct.unpack("!10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        head = head[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[12:]
        with contextlib.suppress(OSError):
            os.write(self._device, head + struct.pack("!HHHH", port, TUNNEL_PORT, UDP_BYTES + len(data), 0) + data)


def listeners(ports: list[int]) -> list[socket.socket]:
    """Listen at ports of the loopback of the namespace that this process is in now."""
    return [socket.create_server(("127.0.0.1", port)) for port in ports]


def forward(listener: socket.socket) -> None:
    """Pass on the connections of a listener to the same port in the namespace that this process is in now."""
    port = listener.getsockname()[1]
    while True:
        outside, _ = listener.accept()
        try:
            inside = socket.create_connection(("127.0.0.1", port))
        except OSError:
            outside.close()
            continue
        for source, target in ((outside, inside), (inside, outside)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(COPY_BYTES):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def enter() -> None:
    """Go into new user and network namespaces, as their root."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET) == -1:
        raise NetworkError(f"no user namespace can be made here: {os.strerror(ctypes.get_errno())}")
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def main(address: str, ports: str, command: list[str]) -> int:
    """Run the command behind the relay; return its exit code."""
    mtu = address_mtu(address)
    relay, waiting = DatagramRelay(address), listeners([int(port) for port in ports.split(",") if port != "0"])
    enter()
    relay.open()
    for words in (
        "link set lo up",
        f"address add {address}/32 dev {DEVICE}",
        f"link set {DEVICE} mtu {mtu} up",
        f"route add default dev {DEVICE}",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    child = subprocess.Popen(command, env={**os.environ, RELAYED: "1"}, preexec_fn=die_with_parent())  # noqa: PLW1509  # threads begin below
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: child.send_signal(number))
    for listener in waiting:
        threading.Thread(target=forward, args=(listener,), daemon=True).start()
    threading.Thread(target=relay.run, args=(child,), daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
    except (NetworkError, OSError) as error:
        sys.exit(f"way.py: {error}")
