"""The base of the engine's parts: the runtime's core, its program, and a lock for operations."""

from threading import Lock

from kofn_switch.compiler.ir.program import Program
from kofn_switch.engine.loaded import Loaded
from kofn_switch.errors import NoProgram
from kofn_switch.native import runtime


class Controls:
    """A core of the runtime, at first without a program."""

    def __init__(self, core: int) -> None:
        """Take over `core`, as the runtime's core_new returns it."""
        self._native = runtime()
        self._core = core
        self._lock = Lock()
        self._loaded: Loaded | None = None
        self._swaps = 0  # number of swaps of the program, as in the runtime's digests

    @property
    def program(self) -> Program | None:
        """The loaded program's model, None before the first `load`."""
        return None if self._loaded is None else self._loaded.program

    @property
    def _now(self) -> Loaded:
        if self._loaded is None:
            raise NoProgram("no program is loaded")
        return self._loaded

    def _swap(self, loaded: Loaded | None) -> None:
        before, self._loaded = self._loaded, loaded
        self._swaps += 1
        self._native.core_swap(self._core, None if loaded is None else loaded.instance)
        if before is not None:
            before.free()
