"""How a job's gradients are coded: its blocks, the codecs for their lanes, and the planner of its iterations.

All workers make the same of the same configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from host import note, summary
from host.codecs import load_codecs
from host.compress import Codec
from host.lanes import code_of
from host.plan import Planner
from host.shape import WORD_BITS, Shape
from run.compression import Compress
from run.config import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """Of one job, whose gradients have `elements`; `codecs` by their lanes' code (host.wire.Lanes), widest first.

    The summary block has magnitudes where `summarised`, and behind them notes where `notes`.
    """

    elements: int
    summarised: bool
    notes: bool
    shape: Shape
    codecs: Mapping[int, Codec]
    planner: Planner

    @classmethod
    def of(cls, job: Job, compress: Compress, elements: int, *, notes: bool = False) -> Self:
        """For gradients of so many elements; CodecError where a codec of the user's own does not do."""
        codecs = load_codecs(
            compress.codec, workers=job.workers, rounding=compress.rounding, gradient_range=job.gradient_range
        )
        widths = tuple(codecs)
        by_code: dict[int, Codec] = {code_of(width): codec for width, codec in codecs.items()}
        adaptive = compress.adapt != "off"
        blocks = -(-elements // (job.words * WORD_BITS // widths[0]))
        everything = compress.codec in ("int32", "auto") and compress.ratio == 1 and not adaptive
        return cls(
            elements=elements,
            summarised=not everything,
            notes=notes,
            shape=Shape(
                blocks=blocks,
                words=job.words,
                widest=widths[0],
                summary_words=note.WORDS * notes + (0 if everything else summary.words(blocks)),
            ),
            codecs=by_code,
            planner=Planner(
                blocks=blocks,
                widths=widths,
                ratio=compress.ratio,
                every=compress.every,
                adaptive=adaptive,
                codecs=by_code if adaptive else {},
                error_max=compress.error_max,
            ),
        )

    @property
    def padded(self) -> int:
        """Elements of all blocks."""
        return self.shape.blocks * self.shape.elements
