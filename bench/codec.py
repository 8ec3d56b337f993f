"""Measure what codecs cost: encode and decode of a gradient beside a NumPy copy of it.

    python -m bench.codec
    python -m bench.codec --codec int8 --codec module:name
    python -m bench.codec --elements 1048576 --workers 7 --repetitions 200 --json

`encode`: ledger (int64) to packed lanes; `decode`: packed sums to their total (int64) and to the mean gradient.
`of_copy`: what a copy of the float32 gradient takes, divided by what encode and decode take together. `whole`: a
worker's iteration, from the gradient into the ledger and onto the wire, and from the sum to the mean and the ledger
again. A row's calls take turns, the copy among them; medians. The copy takes a quarter more or less by where the
allocator puts it: two versions are compared by their milliseconds.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bench.tables import Row, make_parser, say, show, whole
from bench.timing import medians_ms
from kofn_common.config.compress import Rounding
from kofn_common.config.errors import ConfigError
from kofn_common.wire.packet import WORD_BYTES
from kofn_common.wire.sizes import RACK_WORKERS_MAX, WEIGHT_UNIT
from kofn_host.arrays import Floats
from kofn_host.compression.aggregate import Sums
from kofn_host.compression.codec import UNIT, check, encode_packed, statistics
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import Gradient
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.compression.plan import Planner
from kofn_host.errors import CodecError
from kofn_host.kernels.lanes import code_of
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Packed, PackedBlocks
from kofn_host.protocol.results import RESULT, BlockResults
from kofn_host.training import Codec, JobCoding, load_codecs

CODECS: tuple[tuple[str, Rounding], ...] = (
    ("int32", "nearest"),
    ("int16", "nearest"),
    ("int16", "stochastic"),
    ("int8", "nearest"),
    ("int8", "stochastic"),
    ("int4", "nearest"),
    ("int4", "stochastic"),
    ("onebit", "nearest"),
)

WORDS = 4
"""256-byte words in a packet."""

WARM_UP = 3
"""Calls of each that are not timed: caches and allocator see everything once."""

FREED_BYTES = 30 << 20
"""Memory that is taken and freed once: from then on glibc keeps freed memory, as in a long-running process, and calls
do not pay for new storage. (Its threshold follows the largest freed block, up to 32 MiB.)
"""


class Way:
    """One codec, and a gradient on its way through it."""

    def __init__(self, codec: Codec, gradient: Floats) -> None:
        self._codec, self._gradient = codec, gradient
        code, lanes = code_of(codec.width), WORDS * WORD_BYTES * 8 // codec.width
        self._pending = np.rint(gradient.astype(np.float64) / UNIT).astype(np.int64).reshape(-1, lanes)
        blocks = len(self._pending)
        self._coding = JobCoding(
            elements=gradient.size,
            places=(0,),
            parts=1,
            summarised=False,
            notes=False,
            layout=BlockLayout(blocks=blocks, words=WORDS, widest=codec.width, summary_words=0),
            codecs={code: codec},
            planner=Planner(blocks=blocks, widths=(codec.width,)),
        )
        self._plan = self._coding.planner.first()
        storage = LedgerStorage.in_memory(blocks=blocks, lanes=lanes, width=codec.width)
        self._ledger, self._iteration = Ledger(storage, 0, {code: codec}), 0
        self._mean = np.empty(gradient.size, np.float32)
        self._rows, self._ones = np.arange(blocks), np.ones(blocks, np.int64)
        self._scale = codec.scale(*statistics(self._pending))
        packed = encode_packed(codec, self._pending, self._scale[:, None])
        size = len(packed) // blocks
        scales = np.broadcast_to(self._scale, blocks).tolist()
        self._results = results_of(
            PackedBlocks.of(
                (block, Packed(packed[block * size : (block + 1) * size], scales[block], code, WEIGHT_UNIT))
                for block in range(blocks)
            )
        )

    def encode(self) -> None:
        encode_packed(self._codec, self._pending, self._scale[:, None])

    def decode(self) -> None:
        self._average(self._results)

    def _average(self, results: BlockResults) -> None:
        """Make the mean as a worker does."""
        sums = Sums(self._coding, self._plan, "gradients")
        sums.into(self._mean)
        sums.add(results)

    def whole(self) -> None:
        """An iteration: gradient, ledger, wire; sum, mean, ledger."""
        codec, rows, ledger = self._codec, self._rows, self._ledger
        self._iteration += 1
        check(self._gradient)
        ledger.enter(Gradient.of(self._gradient, self._iteration), rows)
        scale = codec.scale(*statistics(ledger.residual.pending))
        ledger.sending(self._iteration, rows, code_of(codec.width), scale)
        self._average(results_of(ledger.noted(rows)))
        ledger.settle(self._iteration, rows, self._ones)


def results_of(packed: PackedBlocks) -> BlockResults:
    """Return the results of blocks to which no other worker contributes."""
    table = np.zeros(len(packed.table), RESULT)
    for name in ("values", "size", "scale", "lanes", "weight"):
        table[name] = packed.table[name]
    table["count"] = table["k"] = 1
    return BlockResults(1, packed.table["block"].astype(np.int64), table, packed)


def measure(codecs: Sequence[tuple[str, Rounding]], elements: int, workers: int, repetitions: int) -> list[Row]:
    """A row for each codec; CodecError or ConfigError before anything is measured."""
    loaded = [
        (name, rounding, codec)
        for name, rounding in codecs
        for codec in load_codecs(name, workers=workers, rounding=rounding).values()
    ]
    gradient = np.random.default_rng(1).laplace(0, 0.01, elements).astype(np.float32)
    np.empty(FREED_BYTES, np.uint8)
    rows = []
    for name, rounding, codec in loaded:
        row: Row = {"codec": name, "bits": codec.width, "rounding": rounding}
        say(" ".join(map(str, row.values())))
        rows.append(row | timed(Way(codec, gradient), gradient, repetitions))
    return rows


def timed(way: Way, gradient: Floats, repetitions: int) -> Row:
    """Times, and what a copy takes as a share of them."""
    works: dict[str, Callable[[], object]] = {
        "copy": gradient.copy,
        "encode": way.encode,
        "decode": way.decode,
        "whole": way.whole,
    }
    medians_ms(works, WARM_UP)
    times = medians_ms(works, repetitions)
    copy, encode, decode, whole = times.values()
    return {
        "copy_ms": copy,
        "encode_ms": encode,
        "decode_ms": decode,
        "of_copy": copy / (encode + decode),
        "whole_ms": whole,
        "whole_of_copy": copy / whole,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--codec", action="append", help="as compress.codec, repeat for several (default: all built in)"
    )
    parser.add_argument(
        "--elements", type=whole(), default=1 << 20, help="of the gradient, whole blocks (default 2**20)"
    )
    parser.add_argument(
        "--workers", type=whole(1, RACK_WORKERS_MAX), default=4, help="whose lanes are to fit a sum (default 4)"
    )
    parser.add_argument("--repetitions", type=whole(), default=50, help="calls of which medians are taken (default 50)")
    options = parser.parse_args()
    blocks = WORDS * WORD_BYTES * 2
    if options.elements % blocks:
        parser.error(f"argument --elements must be a multiple of {blocks}, got {options.elements}")
    nearest: Rounding = "nearest"
    codecs = CODECS if options.codec is None else tuple((name, nearest) for name in options.codec)
    try:
        rows = measure(codecs, options.elements, options.workers, options.repetitions)
    except (CodecError, ConfigError) as error:
        parser.error(str(error))
    show({"codecs": rows}, as_json=options.json)


if __name__ == "__main__":
    main()
