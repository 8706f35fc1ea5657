"""From matplotlib to SVG that lives in a page: its colours and fonts are the page's, in the light and in the dark.

A figure is drawn in colours that stand for the page's variables and become `var(--name)`; no font is named and no size
fixed. The same figure always gives the same text.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup, escape

# Colours that nobody would draw with, and the page's variables that they stand for.
VARIABLES = {
    "#010203": "--ink",
    "#010204": "--soft",
    "#010205": "--line",
    "#010206": "--bad",
    "#010207": "--float64",
    "#010208": "--float32",
    "#010209": "--float16",
    "#01020a": "--bfloat16",
    "#01020b": "--accent",
}
COLOURS = {name.removeprefix("--"): colour for colour, name in VARIABLES.items()}
COLOURS["other"] = COLOURS["accent"]
FONT_SIZE = 10.0
STYLE: dict[str, Any] = {
    "font.size": FONT_SIZE,
    "svg.fonttype": "none",
    "svg.hashsalt": "msda",
    # Clouds of points are paths; simplifying would drop some.
    "path.simplify": False,
    "axes.edgecolor": COLOURS["line"],
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": COLOURS["line"],
    "ytick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["soft"],
    "ytick.labelcolor": COLOURS["soft"],
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style, whatever matplotlib is set to elsewhere."""
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def axes(
    *, width: float, height: float, left: float = 40.0, bottom: float = 32.0, top: float = 16.0
) -> tuple[Any, Any]:
    """Return a figure and its axes, whose frame lies in the same place in every figure of that size.

    Args:
        width: of the figure, in units of the SVG; a font size is in the same units.
        height: likewise.
        left: space for the labels.
        bottom: likewise.
        top: likewise.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional extra

    right = 8.0
    # matplotlib counts in inches of 72 points.
    figure = Figure(figsize=(width / 72, height / 72))
    frame = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    return figure, figure.add_axes(frame)


def inline(figure: Any, *, label: str, prefix: str) -> Markup:
    """Return a figure as an SVG element for a page.

    Args:
        figure: of matplotlib.
        label: what it shows, for those who do not see it.
        prefix: makes its identifiers unique in the page.
    """
    written = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    text = written.getvalue()
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(
        r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL
    )
    # Identifiers that nothing refers to only repeat from figure to figure.
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r"(url\(#|xlink:href=\"#)", lambda found: found[0].replace("xlink:", "") + f"{prefix}-", body)
    body = re.sub(r"font: (?:\w+ )?([0-9.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r"-?[0-9]+\.[0-9]+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    body = re.sub(r"\s*\n\s*", "\n", body)
    start = f'<svg class="chart" viewBox="{box[1]}" role="img" aria-label="{escape(label)}">'
    # What matplotlib writes is SVG; every text in it comes from this package.
    return Markup(start + body.strip())
