"""States that a kill would leave of a ledger: its memory before every store of ledger.c and every line of ledger.py."""

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np

import kofn_host.compression.ledger as code
from kofn_common.nativebuild.library import load_library
from kofn_host.compression.ledger_native import SIGNATURES
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.native import FOLDERS

HERE = Path(__file__).parent
SOURCE = Path(code.__file__).with_suffix(".c")
INCLUDE = [f"-I{folder}" for folder in FOLDERS]
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-fno-tree-loop-distribute-patterns", "-fPIC")

MUTANTS = {
    "committed before it is whole": (
        "    journal->record = ledger->records[block];\n    return",
        "    journal->record = ledger->records[block];\n    store(&journal->committed, block + 1);\n    return",
    ),
    "over before it is applied": (
        "    const int64_t block = journal->committed - 1;\n",
        "    const int64_t block = journal->committed - 1;\n    store(&journal->committed, 0);\n",
    ),
    "applied before it is committed": (
        "    store(&ledger->journal->committed, block + 1);\n    apply(ledger);",
        "    ledger->records[block] = ledger->journal->record;\n"
        "    store(&ledger->journal->committed, block + 1);\n    apply(ledger);",
    ),
    "sent before it is noted": (
        "    store(&sent->iteration, 0);\n",
        "    store(&sent->iteration, iteration);\n",
    ),
    "written over while it is noted": (
        "        store(&before->iteration, 0);\n",
        "        (void)before;\n",
    ),
    "withdrawn apart": (
        "withdrawn = 1 + place_of(ledger, part, iteration, block);\n        commit(ledger, block);",
        "withdrawn = 0;\n        commit(ledger, block);\n        ((struct sent *)sent)->iteration = 0;",
    ),
}
"""Wrong orders of stores, which lose or repeat something: text of ledger.c and its replacement."""


@cache
def watched_library(mutant: str = "") -> ctypes.CDLL:
    """Compile ledger.c so that it reports each store; `mutant`: one of MUTANTS."""
    text = SOURCE.read_text()
    if mutant:
        old, new = MUTANTS[mutant]
        assert text.count(old) == 1, f"mutant {mutant} no longer fits ledger.c"
        text = text.replace(old, new)
    with TemporaryDirectory() as folder:
        source, compiled, library = (Path(folder, name) for name in ("ledger.c", "ledger.o", "ledger.so"))
        source.write_text(text)
        subprocess.run(["cc", *FLAGS, "-fsanitize=thread", *INCLUDE, "-c", "-o", compiled, source], check=True)
        subprocess.run(["cc", *FLAGS, "-shared", "-o", library, compiled, HERE / "stores.c"], check=True)
        loaded = load_library(library, SIGNATURES)
    loaded.stores_end.restype = ctypes.c_void_p
    return loaded


def copied(storage: LedgerStorage) -> LedgerStorage:
    return LedgerStorage(**{field.name: getattr(storage, field.name).copy() for field in fields(storage)})


def moments(storage: LedgerStorage, act: Callable[[], object], mutant: str = "") -> list[LedgerStorage]:
    """Return the states that `act` would leave if it were killed at any store; equal states in a row count once."""
    library, arrays = watched_library(mutant), [getattr(storage, field.name) for field in fields(storage)]
    places = np.array([array.ctypes.data for array in arrays])
    sizes = np.array([array.nbytes for array in arrays])
    library.stores_watch(ctypes.c_void_p(places.ctypes.data), ctypes.c_void_p(sizes.ctypes.data), len(arrays))
    count = ctypes.c_int64()
    with mock.patch.object(code, "library", lambda: library), _looking_at_lines(library.stores_look):
        act()
    found = library.stores_end(ctypes.byref(count))
    states = np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(ctypes.c_uint8)), (count.value, sizes.sum()))
    return [_storage(storage, state) for state in states]


@contextlib.contextmanager
def _looking_at_lines(look: Callable[[], object]) -> Iterator[None]:
    """Call `look` before each line of ledger.py."""

    def trace(frame, event, _):
        if frame.f_code.co_filename == code.__file__:
            look()
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _storage(like: LedgerStorage, state: np.ndarray) -> LedgerStorage:
    """Return the storage of a state: the bytes of its arrays, one after another."""
    arrays, at = {}, 0
    for field in fields(like):
        array = getattr(like, field.name)
        arrays[field.name] = state[at : at + array.nbytes].copy().view(array.dtype).reshape(array.shape)
        at += array.nbytes
    return LedgerStorage(**arrays)


def left_by_kills(
    found: list[LedgerStorage], open_: Callable[[LedgerStorage], object], mutant: str = ""
) -> list[LedgerStorage]:
    """Return the states that differ once the ledger is reopened. A second kill while reopening must change nothing."""
    left: dict[bytes, LedgerStorage] = {}
    for moment in found:
        after, over_that = copied(moment), list[LedgerStorage]()
        if moment.journal[0]:
            over_that = moments(after, lambda: open_(after), mutant)  # noqa: B023  # done at once
        for died in over_that:
            open_(died)
            assert _state(died) == _state(after), "opening again after a kill must give the same state"
        left.setdefault(_state(after), moment)
    return list(left.values())


def _state(storage: LedgerStorage) -> bytes:
    """Return all bytes but the journal's, which is done."""
    assert not storage.journal[0]
    return b"".join(getattr(storage, field.name).tobytes() for field in fields(storage) if field.name != "journal")
