"""The reference as a switch: the methods of `engine.engine.Engine` that need no interfaces."""

import time
from collections import Counter
from collections.abc import Callable
from random import Random

from kofn_switch.compiler.ir.program import Program, Target
from kofn_switch.compiler.reader.reader import read_program
from kofn_switch.errors import NoProgram
from kofn_switch.state.entries import CloneSession, Digest, LogReport, Replica
from tests.switch.reference.call import CallContext, StateCell
from tests.switch.reference.controls import Controls
from tests.switch.reference.meters import MeterCell
from tests.switch.reference.pipeline import Controlled, PacketRun
from tests.switch.reference.profiles import ReferenceProfile
from tests.switch.reference.tables import ReferenceTable

SWITCH = Target()


def _now_us() -> int:
    return time.monotonic_ns() // 1000


class ReferenceEngine(Controls):
    """A switch that interprets its program; see `engine.engine.Engine` for the methods.

    engine = ReferenceEngine()
    engine.load(Path("p4src/build/kofn.json").read_bytes())
    engine.inject(1, packet)
    """

    def __init__(
        self, *, target: Target = SWITCH, now_us: Callable[[], int] = _now_us, random: Random | None = None
    ) -> None:
        """Take `now_us`, the clock of timestamps and meters, and `random`, the source of P4's random()."""
        self._now_us = now_us
        self._random = random or Random()
        self._target = target
        self._groups: dict[int, tuple[Replica, ...]] = {}
        self._sessions: dict[int, CloneSession] = {}
        self._digests: list[Digest] = []
        self._reports: list[LogReport] = []
        self.drops: Counter[str] = Counter()
        self._program: Program | None = None

    @property
    def program(self) -> Program | None:
        """The loaded program's model, None before the first `load`."""
        return self._program

    def load(self, document: bytes) -> None:
        """Make p4c's JSON the running program, all state reset.  Raises ProgramError."""
        program = read_program(document)
        self._around = CallContext(
            program=program,
            target=self._target,
            registers={array.name: [0] * array.size for array in program.registers},
            counters={array.name: [StateCell() for _ in range(array.size)] for array in program.counters},
            meters={
                meter.name: [MeterCell(unit=meter.unit, since_us=self._now_us()) for _ in range(meter.size)]
                for meter in program.meters
            },
            now_us=self._now_us,
            reports=self._reports,
            random=self._random,
        )
        self._groups.clear()
        self._sessions.clear()
        self._value_sets = {name: set() for name in program.value_sets}
        self._controlled = Controlled(
            tables={table.name: ReferenceTable(self._around, table) for table in program.tables},
            profiles={name: ReferenceProfile(profile) for name, profile in program.profiles.items()},
            groups=self._groups,
            sessions=self._sessions,
            value_sets=self._value_sets,
        )
        self._program = program

    def inject(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Process one packet as received on `port`; return (port, packet) for each output."""
        if self._program is None:
            raise NoProgram("no program is loaded")
        outcome = PacketRun(self._around, self._controlled).run(port, packet)
        self._digests += outcome.digests
        self.drops.update(outcome.drops)
        return outcome.sent

    def take_digests(self, timeout_s: float = 0) -> list[Digest]:
        """Return the digests since the last call, oldest first."""
        taken, self._digests = self._digests, []
        return taken

    def take_reports(self, timeout_s: float = 0) -> list[LogReport]:
        """Return the program's log messages since the last call, oldest first."""
        taken = self._reports[:]
        self._reports.clear()
        return taken
