"""Charts as PNG files, for programs that show no SVG: what `svg` writes, painted in its light colours by Agg.

Agg is the painter inside matplotlib. It is spoken to directly: a chart takes milliseconds. Elements and classes are
those of `svg`, and what they look like is read from the same style sheet.
"""

import base64
import io
import math
import re
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any
from xml.etree import ElementTree

import numpy as np

from doubly.analysis.report.svg import COLOURS, STYLE, png
from doubly.core.extras import extra

with extra("plots", "a picture"):
    from markupsafe import Markup
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.colors import to_rgb
    from matplotlib.font_manager import FontProperties
    from matplotlib.image import imread
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

SCALE = 2  # pixels for a unit of a chart

Look = dict[str, str]
Colour = tuple[float, float, float]


def to_png(chart: Markup) -> bytes:
    """A chart of `svg` as the bytes of a PNG file, SCALE pixels for each of its units."""
    root = ElementTree.fromstring(str(chart))
    wide, tall = (float(part) for part in root.attrib["viewBox"].split()[2:])
    canvas = _Canvas(wide, tall)
    for element in root:
        canvas.draw(element)
    return png(canvas.pixels(), effort=3)


class _Canvas:
    """A white sheet to paint on, in the units of a chart, from the top left corner."""

    def __init__(self, wide: float, tall: float):
        self._tall = math.ceil(tall * SCALE)
        painter: Any = RendererAgg  # it has no annotations
        self._agg = painter(math.ceil(wide * SCALE), self._tall, 72 * SCALE)
        self._upright = Affine2D().scale(SCALE, -SCALE).translate(0, self._tall)
        self._rect(0, 0, wide, tall, {"fill": "var(--card)"})

    def pixels(self) -> np.ndarray:
        """What was painted: (lines, columns, 4)."""
        return np.asarray(self._agg.buffer_rgba())

    def draw(self, element: ElementTree.Element) -> None:
        at, look = element.attrib, _look(element)
        if "touch" in at.get("class", "").split():  # it is seen under the pointer only
            return
        kind = element.tag.rpartition("}")[2]
        if kind == "text":
            self._text(element.text or "", at, look)
        elif kind == "image":
            self._image(at)
        elif kind == "rect":
            x, y, wide, tall = _numbers(at, "x", "y", "width", "height")
            self._rect(x, y, wide, tall, look)
        elif kind == "line":
            x1, y1, x2, y2 = _numbers(at, "x1", "y1", "x2", "y2")
            self._path(Path([(x1, y1), (x2, y2)]), look | {"fill": "none"})
        elif kind == "circle":
            x, y, radius = _numbers(at, "cx", "cy", "r")
            self._path(Affine2D().scale(radius).translate(x, y).transform_path(Path.unit_circle()), look)
        elif at["d"]:
            self._path(_path(at["d"]), look)

    def _rect(self, x: float, y: float, wide: float, tall: float, look: Look) -> None:
        corners = [(x, y), (x + wide, y), (x + wide, y + tall), (x, y + tall), (x, y)]
        self._path(Path(corners, closed=True), look)

    def _path(self, path: Path, look: Look) -> None:
        """What is inside of the path first, then its edge."""
        opacity = float(look.get("opacity", 1))
        inside, edge = look.get("fill", "var(--text)"), look.get("stroke", "none")
        if inside not in ("none", "transparent"):
            gc = self._agg.new_gc()
            gc.set_linewidth(0)
            gc.set_alpha(opacity * float(look.get("fill-opacity", 1)))
            self._agg.draw_path(gc, path, self._upright, _colour(inside))
        if edge != "none":
            gc = self._agg.new_gc()
            gc.set_linewidth(float(look.get("stroke-width", 1)))
            gc.set_foreground(_colour(edge))
            gc.set_alpha(opacity)
            gc.set_joinstyle("round" if look.get("stroke-linejoin") == "round" else "miter")
            gc.set_capstyle("butt")
            if "stroke-dasharray" in look:
                gc.set_dashes(0, [float(part) for part in look["stroke-dasharray"].split()])
            self._agg.draw_path(gc, path, self._upright)

    def _text(self, text: str, at: Mapping[str, str], look: Look) -> None:
        size = float(at.get("font-size", look.get("font-size", "12").removesuffix("px")))
        font = FontProperties(size=size)
        x, y, turn = _place(at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # characters that the font has not
            wide = self._agg.get_text_width_height_descent(text, font, False)[0]
            back = {"middle": 0.5, "end": 1.0}.get(at.get("text-anchor", ""), 0.0) * wide
            gc = self._agg.new_gc()
            gc.set_foreground(_colour(look.get("fill", "var(--text)")))
            left, base = SCALE * x - back * math.cos(turn), SCALE * y + back * math.sin(turn)
            self._agg.draw_text(gc, left, base, text, font, math.degrees(turn))

    def _image(self, at: Mapping[str, str]) -> None:
        """A picture, its pixels sharp."""
        x, y, wide, tall = (round(SCALE * each) for each in _numbers(at, "x", "y", "width", "height"))
        found = imread(io.BytesIO(base64.b64decode(at["href"].partition(",")[2])), format="png")
        rows = (np.arange(tall) * len(found) // max(tall, 1)).astype(int)
        columns = (np.arange(wide) * found.shape[1] // max(wide, 1)).astype(int)
        pixels = (255 * found[rows][:, columns]).round().astype(np.uint8)
        self._agg.draw_image(self._agg.new_gc(), x, self._tall - y - tall, np.ascontiguousarray(pixels[::-1]))


def _numbers(at: Mapping[str, str], *names: str) -> list[float]:
    return [float(at[name]) for name in names]


def _place(at: Mapping[str, str]) -> tuple[float, float, float]:
    """Where a text begins, and by how many radians it rises."""
    if "transform" not in at:
        return float(at["x"]), float(at["y"]), 0.0
    x, y, degrees = (float(part) for part in re.findall(r"-?[\d.]+", at["transform"]))
    return x, y, -math.radians(degrees)


def _path(text: str) -> Path:
    """Moves and straight lines: M1 2L3 4Z."""
    steps = re.findall(r"([MLZ])(?:([-\d.]+) ([-\d.]+))?", text)
    codes = {"M": Path.MOVETO, "L": Path.LINETO, "Z": Path.CLOSEPOLY}
    points = [(float(x or 0), float(y or 0)) for _, x, y in steps]
    return Path(np.array(points).reshape(-1, 2), [codes[pen] for pen, _, _ in steps])


# The style sheet


def _look(element: ElementTree.Element) -> Look:
    """What the style sheet says of an element, and then what it says itself."""
    kind, classes = element.tag.rpartition("}")[2], element.attrib.get("class", "").split()
    found = dict(_rules().get(kind, {}))
    for name, rule in _rules().items():
        if name.startswith(".") and name[1:] in classes:
            found |= rule
    return found | _declarations(element.attrib.get("style", ""))


@cache
def _rules() -> dict[str, Look]:
    """The declarations of the style sheet by class or element, without those under the pointer."""
    found = re.findall(r"\.chart (\.?\w+) \{([^}]*)\}", STYLE)
    return {name: _declarations(text) for name, text in found}


def _declarations(text: str) -> Look:
    pairs = (part.partition(":") for part in text.split(";") if part.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


@cache
def _colour(name: str) -> Colour:
    """A colour as numbers; those of the page are by their names, the light ones."""
    if name.startswith("var("):
        light = COLOURS.partition("@media")[0]
        name = re.findall(rf"{name[4:-1]}:(#\w+)", light)[0]
    return to_rgb(name)
