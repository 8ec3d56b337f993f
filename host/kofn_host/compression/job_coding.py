"""The coding of a job's gradients: its blocks, the codecs for their lanes, and the planner of its iterations.

All workers derive the same coding from the same configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import WORD_BITS, places_of
from kofn_common.wire.sizes import PARTS, VOTE_WORDS, WORDS_MAX
from kofn_host.compression import side_values as note
from kofn_host.compression import summary_block as summary
from kofn_host.compression.codec import Codec, largest_lanes
from kofn_host.compression.plan import Planner
from kofn_host.compression.registry import load_codecs
from kofn_host.errors import CodecError
from kofn_host.kernels.lanes import VOTES, code_of
from kofn_host.protocol.block_layout import BlockLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCoding:
    """The coding of a job whose gradients have `elements` elements.

    `codecs`: by the code of their lanes (wire.packet.Lanes), widest first.  The summary block has magnitudes if
    `summarised`, then side values if `notes`.  `places`: the workers' places (wire.packet.places_of), by rank.
    `parts`: the most contributions of a worker to a block; 1 in a tree, whose lanes have room for one contribution of
    each worker.
    """

    elements: int
    places: tuple[int, ...]
    parts: int
    summarised: bool
    notes: bool
    layout: BlockLayout
    codecs: Mapping[int, Codec]
    planner: Planner

    @property
    def most(self) -> Mapping[int, int] | None:
        """The largest lane of each code, 0 for votes; None if native code does not know a codec."""
        return largest_lanes(self.codecs)

    @classmethod
    def of(
        cls, job: JobSection, compress: CompressSection, elements: int, *, notes: bool = False, follows: bool = False
    ) -> Self:
        """Return the coding for gradients of `elements` elements; `follows` as in Planner.

        CodecError if a custom codec is unsuitable.
        """
        codecs = load_codecs(
            compress.codec, workers=job.workers, rounding=compress.rounding, gradient_range=job.gradient_range
        )
        widths = tuple(codecs)
        by_code: dict[int, Codec] = {code_of(width): codec for width, codec in codecs.items()}
        adaptive = compress.ratio_control != "off"
        if widths[0] == VOTES and job.words > VOTE_WORDS:
            raise CodecError(f"job.words must be at most {VOTE_WORDS} if all lanes have one bit, got {job.words}")
        if widths[0] == VOTES and job.racks > 1:
            raise CodecError(f"job.racks must be 1 if all lanes have one bit, got {job.racks}: a leaf sums no votes")
        block_elements = job.words * WORD_BITS // widths[0]
        blocks = -(-elements // block_elements)
        everything = compress.codec in ("int32", "auto") and compress.ratio == 1 and not adaptive
        summary_words = note.words(job.workers) * notes + (0 if everything else summary.words(blocks))
        if summary_words > WORDS_MAX:
            raise CodecError(
                f"the summary block of {job.workers} workers must have at most {WORDS_MAX} words, got {summary_words}"
            )
        return cls(
            elements=elements,
            places=tuple(places_of(job.workers, job.racks)),
            parts=PARTS if job.racks == 1 else 1,
            summarised=not everything,
            notes=notes,
            layout=BlockLayout(
                blocks=blocks,
                words=job.words,
                widest=widths[0],
                summary_words=summary_words,
                planes=job.workers.bit_length(),
            ),
            codecs=by_code,
            planner=Planner(
                blocks=blocks,
                widths=widths,
                ratio=compress.ratio,
                every=compress.max_send_interval,
                adaptive=adaptive,
                follows=follows,
                summary_bits=summary_words * WORD_BITS * summary.ONE // block_elements,
                codecs=by_code if adaptive else {},
                error_max=compress.error_max,
            ),
        )
