"""`make picture`: docs/picture.svg, the picture of the README.

Above: the messages between worker, switch and controller.  Below: one iteration with n = 4 and k = 3.
"""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

TARGET = Path(__file__).parent / "picture.svg"
INK, BLUE, ORANGE, GREEN, GREY = "#222222", "#4c78a8", "#f58518", "#54a24b", "#bbbbbb"
BLOCK_HEIGHT = 0.34

STYLE = {"svg.fonttype": "none", "svg.hashsalt": "kofn", "font.family": "sans-serif", "font.size": 10}


def main() -> None:
    """Draw both parts, one above the other."""
    with mpl.rc_context(STYLE):
        figure, (above, below) = plt.subplots(2, 1, figsize=(9.6, 6.2), height_ratios=[1.25, 1])
        figure.patch.set_facecolor("white")
        parts(above)
        iteration(below)
        figure.tight_layout()
        figure.savefig(TARGET, metadata={"Date": None, "Creator": None})


def box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    """A box with round corners, empty."""
    style = "round,pad=0.02,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, facecolor="white", edgecolor=colour, linewidth=1.6))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK) -> None:
    """From a point to another."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.4))


def parts(axes: Axes) -> None:
    """Workers, switch and controller."""
    axes.set_xlim(0, 12)
    axes.set_ylim(0, 4.4)
    axes.axis("off")
    for rank in range(4):
        y = 3.35 - rank
        colour = ORANGE if rank == 3 else BLUE
        box(axes, (0.2, y), (2.5, 0.66), colour)
        slow = " (blocked)" if rank == 3 else ""
        axes.text(1.45, y + 0.33, f"worker {rank}{slow}", ha="center", va="center", color=INK)
        arrow(axes, (2.75, y + 0.45), (5.0, 2.55 - 0.16 * rank), colour)
        arrow(axes, (5.0, 1.85 - 0.16 * rank), (2.75, y + 0.2), GREEN)
    box(axes, (5.05, 0.85), (2.9, 2.3), INK)
    axes.text(6.5, 2.9, "P4 switch", ha="center", va="center", weight="bold", color=INK)
    axes.text(6.5, 2.35, "adds blocks, lane by lane,", ha="center", va="center", color=INK)
    axes.text(6.5, 1.98, "into the slot of the block;", ha="center", va="center", color=INK)
    axes.text(6.5, 1.61, "with k contributions in it,", ha="center", va="center", color=INK)
    axes.text(6.5, 1.24, "sends the sum to all", ha="center", va="center", color=INK)
    box(axes, (9.3, 0.85), (2.5, 2.3), INK)
    axes.text(10.55, 2.9, "controller", ha="center", va="center", weight="bold", color=INK)
    for line, text in enumerate(
        ("measures blocking,", "fits a model,", "chooses k and the", "rule for late gradients")
    ):
        axes.text(10.55, 2.35 - 0.37 * line, text, ha="center", va="center", color=INK)
    arrow(axes, (8.0, 2.5), (9.25, 2.5))
    axes.text(8.62, 2.66, "digest", ha="center", color=INK, size=9)
    arrow(axes, (9.25, 1.5), (8.0, 1.5))
    axes.text(8.62, 1.2, "k (P4Runtime)", ha="center", va="center", color=INK, size=9)
    axes.text(3.85, 3.75, "gradient blocks (UDP)", ha="center", color=INK, size=9)
    axes.text(3.85, 0.12, "sums (UDP)", ha="center", color=GREEN, size=9)
    arrow(axes, (1.45, 4.08), (1.45, 4.09))
    axes.plot([1.45, 1.45, 10.55, 10.55], [4.05, 4.25, 4.25, 3.3], color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    arrow(axes, (10.55, 3.4), (10.55, 3.2))
    axes.text(6.5, 4.02, "reports, decisions (gRPC)", ha="center", va="center", color=INK, size=9)


def iteration(axes: Axes) -> None:
    """Four gradients over time; the sum is complete with the third."""
    axes.set_xlim(-1.6, 12)
    axes.set_ylim(-1.05, 4.2)
    axes.axis("off")
    ends, close = (3.2, 4.1, 4.6, 8.2), 4.75
    for rank, end in enumerate(ends):
        y = 3.2 - rank * 0.85
        late = rank == 3
        axes.text(-0.2, y + BLOCK_HEIGHT / 2, f"worker {rank}", ha="right", va="center", color=INK)
        axes.add_patch(Rectangle((0, y), end, BLOCK_HEIGHT, color=ORANGE if late else BLUE))
        if not late:
            axes.add_patch(Rectangle((end, y), close - end, BLOCK_HEIGHT, color=GREY))
            axes.add_patch(Rectangle((close, y), 3.3 + 0.5 * rank, BLOCK_HEIGHT, color=BLUE, alpha=0.55))
    axes.plot([close, close], [-0.2, 3.9], color=GREEN, linewidth=1.8)
    axes.text(close, 4.0, "k = 3 of 4 are in: the sum goes to all", ha="center", va="bottom", color=GREEN)
    axes.annotate(
        "late: added to the block of the iteration that is open then",
        xy=(8.25, 0.7), xytext=(6.0, -0.35), color=ORANGE, ha="left", va="center",
        arrowprops={"arrowstyle": "-|>", "color": ORANGE},
    )  # fmt: skip
    axes.add_patch(Rectangle((0.0, -0.95), 0.4, 0.25, color=BLUE))
    axes.text(0.5, -0.83, "computes a gradient", va="center", color=INK, size=9)
    axes.add_patch(Rectangle((3.1, -0.95), 0.4, 0.25, color=GREY))
    axes.text(3.6, -0.83, "waits for the sum", va="center", color=INK, size=9)
    arrow(axes, (9.0, -0.83), (11.6, -0.83))
    axes.text(8.9, -0.83, "time", ha="right", va="center", color=INK, size=9)


if __name__ == "__main__":
    main()
