"""The value sets of one loaded program: the control plane's keys, and their native form."""

from collections.abc import Sequence
from ctypes import CDLL

from kofn_switch.compiler.codegen.layout import limbs
from kofn_switch.compiler.codegen.matching import words
from kofn_switch.compiler.ir.program import Program
from kofn_switch.errors import InvalidEntry, SwitchError, TableFull
from kofn_switch.native import limbs_array
from kofn_switch.state.named import named


class ValueSets:
    """Keys by value set; empty at first. Only one thread at a time may call the methods, as in `Loaded`."""

    def __init__(self, program: Program, native: CDLL, core: int, instance: int) -> None:
        """Take the sets of the program that `instance` runs."""
        self._native, self._core, self._instance = native, core, instance
        self._sets = {name: (number, values) for number, (name, values) in enumerate(program.value_sets.items())}
        self._keys: dict[str, tuple[int, ...]] = dict.fromkeys(self._sets, ())

    def get(self, name: str) -> tuple[int, ...]:
        return named(self._keys, "value set", name)

    def replace(self, name: str, keys: Sequence[int]) -> None:
        number, values = named(self._sets, "value set", name)
        own = tuple(dict.fromkeys(keys))
        if len(own) > values.size:
            raise TableFull(f"value set {name} holds {values.size} keys, not {len(own)}")
        for key in own:
            if not 0 <= key < 1 << values.width:
                raise InvalidEntry(f"value set {name} has keys of bit<{values.width}>; {key:#x} does not fit")
        cells = [word for key in own for word in words(key, values.width)]
        if self._native.value_set_replace(self._core, self._instance, number, limbs_array(cells), len(own)) < 0:
            raise SwitchError(f"not enough memory for {len(own)} keys of {limbs(values.width)} words")
        self._keys[name] = own
