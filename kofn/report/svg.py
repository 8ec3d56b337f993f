"""A matplotlib figure as an element of a page."""

import io

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kofn.report.figures import STYLE


def svg(figure: Figure) -> Markup:
    """Return inline SVG, with text as text, and without a background."""
    text = io.StringIO()
    FigureCanvasAgg(figure)
    with mpl.rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # the layout is done; saving must not repeat it
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    _, start, rest = text.getvalue().partition("<svg")
    return Markup(start + rest)
