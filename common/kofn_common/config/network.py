"""The TOML file's [network]: topology, driver, switch, and the ports of the management network."""

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.section import Mbps, Section, WholeNumber
from kofn_common.gso import gso_works


class NetworkSection(Section, frozen=True):
    """The network of the run: topology, driver, switch."""

    topology: Path | None = None  # None: a star of job.workers hosts
    driver: Literal["auto", "mininet", "netns"] = "auto"
    target: Literal["embedded", "bmv2"] = "embedded"
    link_mbps: Mbps | None = (
        200.0  # rate of each host's link, without a topology; None: not shaped. An idle link passes 36 kB at once (2 ms
    )
    # at its rate, if that is more), so the rate hardly matters for a smaller gradient
    uplink_mbps: Mbps | None = None  # rate of each leaf's link to the root, without a topology; None: not shaped
    management: str = "172.30.255.0/24"
    p4runtime_port: Annotated[int, Meta(ge=1, le=65535)] = (
        50051  # port of the switch; in a tree, the root's port (the leaves have the next ports except controller_port)
    )
    controller_port: Annotated[int, Meta(ge=1, le=65535)] = 50052
    device_id: Annotated[int, Meta(ge=0, le=2**63 - 1)] = (
        0  # id of the switch; in a tree, the root's id (the leaves have the next ids)
    )
    trace: WholeNumber = 0  # number of packets whose way through the program the switch writes to switch.log
    pcap: bool = False  # keep every frame of every link of the switch, in pcap/ below the trial
    gso: bool = True  # packets may cross links to the embedded switch coalesced, at less cost
    tls: bool = True  # workers, peers, controller and commands authenticate (docs/explanation/security.md)

    def p4runtime_ports(self, switches: int) -> list[int]:
        """Return each switch's TCP port for P4Runtime: the ports from p4runtime_port on, except controller_port."""
        ports = range(self.p4runtime_port, self.p4runtime_port + switches + 1)
        return [port for port in ports if port != self.controller_port][:switches]

    @property
    def coalesced(self) -> bool:
        """Whether packets are coalesced between this machine's workers and the switch: if both and the kernel can."""
        return self.gso and self.target == "embedded" and gso_works()

    def check(self) -> None:
        """Check that the two ports differ, that hosts can use the management network, and that no packets are traced on
        BMv2, which cannot trace."""
        if self.trace and self.target == "bmv2":
            raise ConfigError(
                f"network.trace must be 0 with network.target = 'bmv2', got {self.trace}: only 'embedded' traces"
                " packets"
            )
        if self.p4runtime_port == self.controller_port:
            raise ConfigError(
                f"network.controller_port must differ from network.p4runtime_port, got {self.controller_port} for both"
            )
        try:
            network = IPv4Network(self.management)
        except ValueError as error:
            raise ConfigError(
                "network.management must be an IPv4 network, 172.30.255.0/24 for example, got"
                f" {self.management!r} ({error})"
            ) from error
        if network.is_loopback or network.is_multicast or network.is_reserved or network.is_unspecified:
            raise ConfigError(f"network.management must be a network that hosts can have, got {self.management!r}")
