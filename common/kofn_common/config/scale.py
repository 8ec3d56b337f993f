"""The TOML file's [scale]: `kofn simulate --scale`."""

from kofn_common.config.section import NotNegative, Positive, Probability, Section

SCALE_WORKERS_MAX = 1_000_000
"""The largest number of workers of `kofn simulate --scale`, which has no switch."""


class ScaleSection(Section, frozen=True):
    """The models of `kofn simulate --scale` (docs/explanation/scale.md)."""

    noise_scale: NotNegative = 2.0  # noise scale phi of the gradient, in units of a worker's batch
    correlation: Positive = 10.0  # L, iterations after which half of a gradient's direction remains
    gradient_mb: NotNegative = 0.0  # megabytes of a gradient on the wire
    overhead_ms: NotNegative = 0.0  # time of the sum and the step, beside the k-th gradient and the network
    rack_share: Probability = (
        0.0  # an iteration ends when this share of the racks has its part of k; 0: when any k are there
    )
