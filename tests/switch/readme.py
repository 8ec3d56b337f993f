"""Start a switch with a program, follow a README of p4-guide in its order, and print the outcome.

    python3 readme.py README.md PROGRAM.json

simple_switch_CLI's commands are typed, a python block is run, packets are sent on the interfaces named; one that is
only defined goes in at the end.  The README of a P4Runtime session pushes its program itself.  The python3 is that of
p4runtime_sh and scapy.
"""

import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from scapy import all as scapy

COMMAND = re.compile(
    r"\s*(?:RuntimeCmd: *)?((?:table|act_prof|register|counter|meter|mirroring|mc)_[a-z_]+(?: [^<>]*(?:=> ?[^<>]*)?)?)$"
)
PACKET = re.compile(r"\s*(?:>>> *)?(\w+ *= *Ether\([^<>]*|sendp\(.*)$")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"-i (\d+@veth\d+)")
QUIET_S = 0.5
SOL_PACKET, IGNORE_OUTGOING = 263, 23
ETH_P_ALL = 3


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield the input ("commands") and the code to run ("code"); consecutive commands come together."""
    for number, part in enumerate(BLOCK.split(text)):
        if number % 2:
            yield "code", part
            continue
        typed: list[str] = []
        for line in part.splitlines():
            if found := COMMAND.match(line):
                typed.append(found[1])
            elif found := PACKET.match(line):
                yield "commands", "\n".join(typed)
                yield "code", found[1]
                typed = []
        yield "commands", "\n".join(typed)


class Session:
    """The prompt, the Python session and the far ends of the interfaces."""

    def __init__(self) -> None:
        self._ends = {name: _end(name) for _, name in socket.if_nameindex() if re.fullmatch(r"veth\d*[13579]", name)}
        self._sent: set[int] = set()
        self._scope = vars(scapy) | {"sendp": self.send}

    def commands(self, lines: str) -> None:
        """Type the commands and print the answers."""
        if lines:
            typed = f"{lines}\n"
            told = subprocess.run("simple_switch_CLI", input=typed, stdout=subprocess.PIPE, text=True, check=False)
            print(lines, told.stdout, sep="\n")

    def code(self, code: str) -> None:
        """Run the code as the README's session does; the session continues after an exception."""
        try:
            exec(code, self._scope)
        except Exception as error:
            print(type(error).__name__, error)

    def send(self, packet: scapy.Packet, iface: str) -> None:
        """Send the packet, and print the packets from the other interfaces until all are quiet for a while."""
        scapy.sendp(packet, iface=iface, verbose=False)
        self._sent.add(id(packet))
        print("sent", iface, bytes(packet).hex())
        heard: list[tuple[str, str]] = []
        while ready := select.select(list(self._ends.values()), [], [], QUIET_S)[0]:
            heard += [(end.getsockname()[0], end.recv(65535).hex()) for end in ready]
        for name, frame in sorted(heard):
            print(name, frame)

    def send_rest(self, iface: str) -> None:
        """Send the packets that the README defines and does not send."""
        for packet in [value for value in self._scope.values() if isinstance(value, scapy.Packet)]:
            if id(packet) not in self._sent:
                self.send(packet, iface)


def _end(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    end.bind((interface, ETH_P_ALL))
    return end


def start(text: str, program: str) -> None:
    """Start the README's switch; it ends with the machine."""
    ports = [part for port in sorted(set(PORT.findall(text))) for part in ("-i", port)]
    shell = "p4runtime_sh" in text
    name, what, listens = ("simple_switch_grpc", "--no-p4", 9559) if shell else ("simple_switch", program, 9090)
    with Path("switch.log").open("w") as log:
        switch = subprocess.Popen([name, *ports, what], stdout=log, stderr=log)
    while not _answers(listens):
        if switch.poll() is not None:
            sys.exit(f"{name} has ended: {Path('switch.log').read_text()}")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(readme: str, program: str) -> None:
    text = Path(readme).read_text()
    start(text, program)
    session = Session()
    for kind, step in steps(text):
        session.code(step) if kind == "code" else session.commands(step)
    session.send_rest("veth2" if "0@veth2" in text else "veth0")
    sys.stdout.flush()
    os._exit(0)  # since the shell's threads would not end


if __name__ == "__main__":
    main(*sys.argv[1:])
