"""Instruction objects from the table that the protocol core fills."""

import ctypes
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kofn_common.wire.packet import KofnHeader, headers_of
from kofn_host import structs
from kofn_host.protocol.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Send
from kofn_host.protocol.results import BlockId, BlockResults
from kofn_host.structs import InstructionKind

INSTRUCTION = np.dtype(structs.Instruction)
"""struct instruction of core.h."""


def read_instructions(table: npt.NDArray[Any], results: npt.NDArray[Any], source: object) -> Iterator[Instruction]:
    """Yield the instructions of a table; consecutive DELIVERs become one.  `source` keeps the results' values."""
    for begin, end in _runs(table):
        yield from _of_one_kind(table[begin:end], results[begin:end], source)


def _of_one_kind(run: npt.NDArray[Any], results: npt.NDArray[Any], source: object) -> Iterator[Instruction]:
    """Yield the instructions of one kind; `results`: the results of DELIVERs, whose values `source` keeps."""
    kind = InstructionKind(int(run[0]["kind"]))
    if kind is InstructionKind.DELIVER:
        delivered = BlockResults(int(run[0]["iteration"]), run["block"], results, source)
        yield Deliver(delivered, run["hint"].astype(np.int64), run["time_s"])
    elif kind is InstructionKind.SEND:
        yield from map(_send, headers_of(run["header"].tobytes()), run["values"], run["size"], run["launch"])
    elif kind is InstructionKind.ENCODE_AGAIN:
        for row in run[["block", "part", "counts", "scale", "lanes"]].tolist():
            block, part, counts, scale, lanes = row
            yield EncodeAgain(block=block, part=part, counts=bool(counts), scale=scale, lanes=lanes)
    elif kind is InstructionKind.ASK_PEERS:
        for iteration, block, stale_in in run[["iteration", "block", "stale_in"]].tolist():
            yield AskPeers(id=BlockId(iteration, block), stale_in=None if stale_in < 0 else stale_in)
    else:
        yield Complete(iteration=int(run[0]["iteration"]))


def _runs(table: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Return begin and end of each run of instructions of one kind and iteration."""
    kinds, iterations = table["kind"], table["iteration"]
    others = np.flatnonzero((kinds[1:] != kinds[:-1]) | (iterations[1:] != iterations[:-1]))
    return [*pairwise([0, *(others + 1).tolist(), len(table)])] if len(table) else []


def _send(header: KofnHeader, values: int, size: int, launch: int) -> Send:
    return Send(header, ctypes.string_at(int(values), int(size)), int(launch))
