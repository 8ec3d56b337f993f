"""The scenarios of `kofn experiment codecs`: base configurations with settings of [compress]."""

from collections.abc import Sequence
from dataclasses import dataclass

from kofn.experiments import matrix
from kofn.experiments.matrix import Scenario, of_scenario
from kofn_common.config.compress import INTEGERS, ONE_BIT
from kofn_common.config.schema import Config
from kofn_common.wire.packet import WORD_BITS

BASELINE = "int32"
"""The variant that the other variants are compared with."""

ELEMENTS = 512
"""Elements of a block, in all lanes; a word of votes has more."""

NO_FEEDBACK = "-no-feedback"
"""The end of the name of a codec that discards encoding errors."""

UNCOMPRESSED, ADAPTIVE = "uncompressed", "adaptive"
"""The variants of a link that slows down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The encoding of gradients in one scenario; `base` is the name of the scenario's configuration file in
    kofn/experiments/codecs."""

    name: str
    base: str
    codec: str
    ratio: float = 1.0
    error_feedback: bool = True
    ratio_control: str = "off"

    @property
    def settings(self) -> list[str]:
        widest = 1 if self.codec == ONE_BIT else INTEGERS.get(self.codec, 32)
        return [
            f"compress.codec={self.codec}",
            f"compress.ratio={self.ratio}",
            f"compress.error_feedback={str(self.error_feedback).lower()}",
            f"compress.ratio_control={self.ratio_control}",
            f"job.words={max(1, ELEMENTS * widest // WORD_BITS)}",
        ]

    def scenario(self, settings: Sequence[str], target: str | None) -> Scenario:
        """Return the scenario with the command line's settings. ConfigError names the conflict."""
        path = matrix.FOLDER / "codecs" / f"{self.base}.toml"
        with of_scenario(self.name):
            config = Config.load(path, [*self.settings, *settings])
        return Scenario(name=self.name, config=config).overridden(target=target, objectives=())


def _digits(codec: str) -> list[Variant]:
    """Return the two variants of a codec, with error feedback and without error feedback."""
    return [
        Variant(name=codec, base="digits", codec=codec),
        Variant(name=f"{codec}{NO_FEEDBACK}", base="digits", codec=codec, error_feedback=False),
    ]


def _link(base: str) -> list[Variant]:
    """Return the variants of a link that slows down."""
    return [
        Variant(name=f"{base}-{UNCOMPRESSED}", base=base, codec="int32"),
        Variant(name=f"{base}-{ADAPTIVE}", base=base, codec="auto", ratio_control="deliverable"),
    ]


DIGITS = (
    Variant(name=BASELINE, base="digits", codec="int32"),
    *(variant for codec in ("int16", "int8", "int4", "onebit") for variant in _digits(codec)),
    Variant(name="int8-0.1", base="digits", codec="int8", ratio=0.1),
    Variant(name="auto-0.25", base="digits", codec="auto", ratio=0.25),
)

LINKS = (*_link("link-one"), *_link("link-all"))

VARIANTS = {variant.name: variant for variant in (*DIGITS, *LINKS)}
"""All variants, by name."""
