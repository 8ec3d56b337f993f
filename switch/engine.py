"""The embedded switch as one object: ports, the loaded program, its tables and other state.

Thread-safe: every method may be called from any thread while packets run.  A packet sees one consistent state.
"""

from collections.abc import Mapping, Sequence

from switch.entries import Count, Digest, Entry, Key, Replica, Stats
from switch.program import Program


class Engine:
    """A switch.  Names of tables, actions, counters and registers are those of p4c's output: `ingress.slot.jobs`.

        engine = Engine({1: "s1-eth1", 2: "s1-eth2"}, cpu_port=255)
        engine.load(Path("p4src/build/kofn.json").read_bytes())
        engine.start()
        engine.insert(Entry(table="ingress.forward.l2", key=(Exact(value=mac),), action=..., parameters=(1,)))
    """

    program: Program | None

    def __init__(self, ports: Mapping[int, str], *, cpu_port: int | None = None, qdisc_bypass: bool = False) -> None:
        """`ports`: port number (0..510) to interface name; the interfaces are opened by `start`.

        Packets sent to `cpu_port` go to `take_packet_ins`.  `qdisc_bypass` sends past the interfaces' queueing
        disciplines: faster, and wrong where an interface of the switch is shaped.
        """
        raise NotImplementedError

    def load(self, document: bytes) -> None:
        """Make p4c's JSON the running program, all state reset; the old program stays on an error.

        Raises ProgramError for what is not executed, CompilerMissing, CompileError.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Open the ports and forward packets until `stop`; without a program packets are dropped.  Idempotent.

        Raises PortError.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Stop forwarding and close the ports; tables and registers stay.  Idempotent."""
        raise NotImplementedError

    def insert(self, entry: Entry) -> None:
        """Add an entry.  Raises InvalidEntry, EntryExists, TableFull."""
        raise NotImplementedError

    def modify(self, entry: Entry) -> None:
        """Give an entry another action or other parameters; its counter goes on.  InvalidEntry, EntryNotFound."""
        raise NotImplementedError

    def delete(self, table: str, key: Key, priority: int = 0) -> None:
        """Remove an entry.  Raises InvalidEntry, EntryNotFound."""
        raise NotImplementedError

    def entries(self, table: str) -> list[Entry]:
        """The entries of a table, const ones included, in order of insertion; without the default."""
        raise NotImplementedError

    def set_default(self, table: str, action: str, parameters: Sequence[int] = ()) -> None:
        """What happens on a miss.  Raises InvalidEntry, also when the program has a const default action."""
        raise NotImplementedError

    def reset_default(self, table: str) -> None:
        """Back to the program's default action."""
        raise NotImplementedError

    def default(self, table: str) -> tuple[str, tuple[int, ...]]:
        """The default action's full name and its parameters."""
        raise NotImplementedError

    def count(self, table: str, key: Key, priority: int = 0) -> Count:
        """The direct counter of an entry.  Raises EntryNotFound; InvalidEntry when the table has no direct counter."""
        raise NotImplementedError

    def set_count(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set the direct counter of an entry; errors as `count`."""
        raise NotImplementedError

    def default_count(self, table: str) -> Count:
        """The direct counter of the default entry: the misses."""
        raise NotImplementedError

    def read_counter(self, name: str, index: int) -> Count:
        """One cell of an indirect counter.  Raises InvalidEntry (index)."""
        raise NotImplementedError

    def write_counter(self, name: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter."""
        raise NotImplementedError

    def read_register(self, name: str, index: int) -> int:
        """One cell of a register array, unsigned.  Raises InvalidEntry (index)."""
        raise NotImplementedError

    def write_register(self, name: str, index: int, value: int) -> None:
        """Set one cell of a register array."""
        raise NotImplementedError

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Make or replace multicast group 1..65535."""
        raise NotImplementedError

    def delete_group(self, group: int) -> None:
        """Remove a multicast group.  Raises EntryNotFound."""
        raise NotImplementedError

    def group(self, group: int) -> tuple[Replica, ...]:
        """The replicas of a multicast group.  Raises EntryNotFound."""
        raise NotImplementedError

    def groups(self) -> dict[int, tuple[Replica, ...]]:
        """All multicast groups."""
        raise NotImplementedError

    def take_digests(self, timeout_s: float) -> list[Digest]:
        """The digests since the last call, oldest first; waits up to `timeout_s` for the first one.

        The switch keeps a bounded number and counts those it had to drop in `stats`.
        """
        raise NotImplementedError

    def take_packet_ins(self, timeout_s: float) -> list[bytes]:
        """The packets sent to the CPU port since the last call; waits up to `timeout_s` for the first one."""
        raise NotImplementedError

    def send(self, packet: bytes) -> None:
        """Process a packet as received on the CPU port (packet-out, controller header in front)."""
        raise NotImplementedError

    def inject(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Process one packet as received on `port`; returns (port, packet) of what would be sent, CPU port included.

        No sockets are involved and the ports need not exist: for tests and tools.
        """
        raise NotImplementedError

    def stats(self) -> Stats:
        """Counts of each port and of every reason to drop a packet."""
        raise NotImplementedError
