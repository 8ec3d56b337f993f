"""Run a switch between veth pairs in the network namespace around, and relay packets to and from its ports.

    unshare -n python relay.py 3 LOG COMMAND...       three ports; the command's output goes to LOG

A line `PORT HEX` on standard input is a frame sent into that port; a line on standard output is one that came out of
it.  The end of standard input, or of the command, ends both; the namespace and all in it vanish with this process.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path

TEST_TYPE = 0x9000
OUTGOING = 4  # PACKET_OUTGOING: sent by this process itself


def make_port(port: int) -> socket.socket:
    """Create a veth pair; the switch's end is swN, the returned socket is at the other."""
    subprocess.run(["ip", "link", "add", f"sw{port}", "type", "veth", "peer", "name", f"ho{port}"], check=True)
    for name in (f"sw{port}", f"ho{port}"):
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TEST_TYPE))
    end.bind((f"ho{port}", TEST_TYPE))
    return end


def command_line(command: list[str], ports: list[int]) -> list[str]:
    """Return the command with the ports' -i flags before its own."""
    flags = [part for port in ports for part in ("-i", f"{port}@sw{port}")]
    at = command.index("--no-p4")
    return command[:at] + flags + command[at:]


def relay(ends: dict[int, socket.socket], child: subprocess.Popen[bytes]) -> None:
    """Carry frames until standard input or the command ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ, 0)
        for port, end in ends.items():
            selector.register(end, selectors.EVENT_READ, port)
        while child.poll() is None:
            for key, _ in selector.select(timeout=0.5):
                if key.data:
                    frame, address = ends[key.data].recvfrom(65535)
                    if address[2] != OUTGOING:
                        print(key.data, frame.hex(), flush=True)
                elif line := os.read(0, 1 << 20):
                    for text in line.decode().splitlines():
                        port_text, _, data = text.partition(" ")
                        ends[int(port_text)].send(bytes.fromhex(data))
                else:
                    return


def main() -> int:
    """Set up, relay, and end the command."""
    count, log, *command = sys.argv[1:]
    ports = list(range(1, int(count) + 1))
    ends = {port: make_port(port) for port in ports}
    with Path(log).open("wb") as output:
        child = subprocess.Popen(command_line(command, ports), stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            relay(ends, child)
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(3)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    return child.returncode


if __name__ == "__main__":
    sys.exit(main())
