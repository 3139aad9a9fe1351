"""Charts as SVG, drawn by hand: small, sharp at any size, readable in light and dark, and alive under the pointer.

A chart is a string of markup. What is written into it comes from data, so every text goes through `Markup.format`,
which escapes it, after `plain_text` has taken out what no file should show. Elements with `data-tip` tell what they
are when the pointer (or a finger) rests on them: the page has one small script for all of them.
"""

import base64
import math
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup

Limits = tuple[float, float]
WIDE, HALF, NARROW = 760, 480, 350
"""Widths of a chart in its own units: across the page, half of it, and on a telephone."""
LINE = 15  # units from one line of text to the next
CHARACTER = 6.2  # units that a character takes, on average…
WIDEST = 8.8  # …and in a word that has many wide ones
SERIES = 6  # colours of lines
LONGEST = 40  # characters of a name

COLOURS = """
:root { --text:#1d1f23; --quiet:#5b6069; --line:#dcdad3; --grid:#e9e7e1; --paper:#faf9f6; --card:#ffffff;
  --accent:#0067a3; --s1:#0072b2; --s2:#c8500a; --s3:#00805c; --s4:#a8478a; --s5:#8a6a00; --s6:#4a6fd0;
  --shade:#f3eed6; --pos:#b2182b; --neg:#2166ac; --good:#1a7f37; --note:#8a5a00; --bad:#b42318; }
@media screen and (prefers-color-scheme: dark) {
  :root { --text:#e7e6e3; --quiet:#a9adb6; --line:#3a3d44; --grid:#30333a; --paper:#141619; --card:#1c1f24;
    --accent:#6cb8f0; --s1:#5eb3ee; --s2:#f08a4b; --s3:#3fc49a; --s4:#e08cc6; --s5:#d9b23c; --s6:#93a9ff;
    --shade:#2e2b1d; --pos:#ff7b72; --neg:#6cb8f0; --good:#56d364; --note:#e3b341; --bad:#ff8b80; }
}
"""
STYLE = """
.chart { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--text); }
.chart text { fill: var(--text); } .chart .quiet { fill: var(--quiet); }
.chart .axis { stroke: var(--quiet); stroke-width: 1; } .chart .grid { stroke: var(--grid); stroke-width: 1; }
.chart .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .chart .pale { opacity: .35; }
.chart .dash { stroke-dasharray: 5 3; } .chart .dots { stroke-dasharray: 1.5 3; }
.chart .spread { opacity: .22; stroke: none; } .chart .soft { opacity: .45; stroke: none; }
.chart .shade { fill: var(--shade); } .chart .mark { fill-opacity: .75; stroke: none; }
.chart .inside { font-size: 10px; pointer-events: none; }
.chart .rule { stroke: var(--quiet); stroke-width: 1; }
.chart .touch { fill: transparent; } .chart .touch:hover { fill: var(--quiet); fill-opacity: .16; }
.chart .cell { stroke: var(--card); stroke-width: 1; } .chart .cell:hover { stroke: var(--text); }
.chart .image { image-rendering: pixelated; } .chart .frame:hover { stroke: var(--s2); stroke-width: 2; }
""" + "".join(
    f".chart .l{i} {{ stroke: var(--s{i}); }} .chart .f{i} {{ fill: var(--s{i}); }}\n" for i in range(1, SERIES + 1)
)


def plain_text(value: object, most: int = LONGEST) -> str:
    """A text of unknown origin in one line: without control and direction characters, and not too long.

    >>> plain_text("a\\n\\u202eb\\x00" + "c" * 50, 8)
    'a bcccc…'
    """
    text = " ".join(str(value).split())
    text = "".join(char for char in text if unicodedata.category(char)[0] != "C")
    return text if len(text) <= most else text[: most - 1] + "…"


def number(value: float, digits: int = 3) -> str:
    """A number for people, with a true minus sign.

    >>> number(-19.876), number(0.00012), number(1234.5), number(1.23e8)
    ('−19.9', '0.00012', '1234', '1.23e+08')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value and 10 ** (digits - 1) <= abs(value) < 1e6:
        text = f"{value:.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−") if text != "-0" else "0"


def finite(*series: Sequence[float] | np.ndarray) -> np.ndarray:
    """All numbers of these that are finite, in one."""
    joined = np.concatenate([np.asarray(each, dtype=float).ravel() for each in series])
    found: np.ndarray = joined[np.isfinite(joined)]
    return found


def around(values: np.ndarray, margin: float = 0.05) -> Limits:
    """A range that holds these values with some room."""
    values = finite(values)
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = margin * (high - low) or 0.05 * abs(high) or 0.5
    return low - room, high + room


def ticks(limits: Limits, about: int = 5) -> list[float]:
    """Round numbers in a range.

    >>> ticks((0.0, 1.0)), ticks((-21.3, -18.2), 3)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-21.0, -20.0, -19.0])
    """
    low, high = limits
    rough = (high - low) / max(1, about)
    if not (math.isfinite(rough) and rough > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= 0.75 * rough), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, min(last, first + 50) + 1)]


def named_ticks(limits: Limits, about: int) -> list[tuple[float, str]]:
    """Round numbers in a range with their texts, which differ.

    >>> named_ticks((0.10001, 0.10004), 3)
    [(0.10001, '0.10001'), (0.10002, '0.10002'), (0.10003, '0.10003'), (0.10004, '0.10004')]
    """
    found = ticks(limits, about)
    step = found[1] - found[0] if len(found) > 1 else 1.0
    largest = max(map(abs, found), default=0.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if largest >= 1e6 or decimals > 6:
        return [(at, number(at, 3)) for at in found]
    return [(at, f"{at:.{decimals}f}".replace("-", "−")) for at in found]


class Chart:
    """Axes with what is drawn into them, from the back to the front."""

    def __init__(
        self,
        x: Limits,
        y: Limits,
        x_label: str = "",
        y_label: str = "",
        wide: int = HALF,
        tall: int = 250,
        x_ticks: Sequence[tuple[float, str]] | None = None,
        y_ticks: Sequence[tuple[float, str]] | None = None,
        legend: Sequence[tuple[str, str]] = (),
    ):
        self._x, self._y = x, y
        self._wide, self._tall = wide, tall
        rows = _legend_rows(legend, wide - 60)
        self._top = 10 + LINE * len(rows) + (LINE if y_label else 0)
        tall += LINE * len(rows)
        self._tall = tall
        about = max(2, wide // 110)
        self._x_ticks = named_ticks(x, about) if x_ticks is None else x_ticks
        self._y_ticks = named_ticks(y, 5) if y_ticks is None else y_ticks
        longest = max((len(text) for _, text in self._y_ticks), default=0)
        self._left = min(0.45 * wide, 14 + CHARACTER * longest)
        self._right, self._bottom = wide - 12, tall - (40 if x_label else 24)
        self._parts: list[Markup] = []
        self._legend(rows)
        self._axes(x_label, y_label)

    def _legend(self, rows: list[list[tuple[str, str]]]) -> None:
        for line, row in enumerate(rows):
            at, below = self._left, 12 + LINE * line
            for style, text in row:
                shape = (
                    Markup('<rect class="{}" x="{:.0f}" y="{}" width="16" height="9"/>')
                    if style.startswith("f") or style == "shade"
                    else Markup('<line class="line {}" x1="{:.0f}" y1="{}" x2="{:.0f}" y2="{}"/>')
                )
                arguments = (
                    (style, at, below - 9)
                    if style.startswith("f") or style == "shade"
                    else (style, at, below - 4, at + 16, below - 4)
                )
                self._parts.append(shape.format(*arguments))
                self.text(at + 21, below, text, own_units=True)
                at += 21 + CHARACTER * len(text) + 16

    def _axes(self, x_label: str, y_label: str) -> None:
        for at, text in self._y_ticks:
            y = self.y(at)
            self._parts.append(_line(self._left, y, self._right, y, "grid"))
            self.text(self._left - 6, y + 4, text, "end", "quiet", own_units=True)
        for at, text in self._x_ticks:
            x = self.x(at)
            self._parts.append(_line(x, self._bottom, x, self._bottom + 4, "axis"))
            self.text(x, self._bottom + 17, text, "middle", "quiet", own_units=True)
        self._parts.append(_line(self._left, self._bottom, self._right, self._bottom, "axis"))
        if x_label:
            self.text((self._left + self._right) / 2, self._tall - 6, x_label, "middle", own_units=True)
        if y_label:
            self.text(4, self._top - 6, y_label, own_units=True)

    def x(self, value: float) -> float:
        """Where a value lies from the left."""
        low, high = self._x
        return self._left + (value - low) / (high - low) * (self._right - self._left)

    def y(self, value: float) -> float:
        """Where a value lies from the top; what is outside stays at the edge."""
        low, high = self._y
        share = min(max((value - low) / (high - low), -0.02), 1.02)
        return self._bottom - share * (self._bottom - self._top)

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", style: str = "", own_units: bool = False
    ) -> None:
        """A text at a value, or at units of the chart itself."""
        where = (x, y) if own_units else (self.x(x), self.y(y))
        form = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>')
        self._parts.append(form.format(*where, anchor, style, text))

    def shade(self, low: float, high: float) -> None:
        """A part of the x axis, shaded over the whole height."""
        form = Markup('<rect class="shade" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
        x, end = self.x(max(low, self._x[0])), self.x(min(high, self._x[1]))
        self._parts.insert(0, form.format(x, self._top, max(0.0, end - x), self._bottom - self._top))

    def line(self, x: Iterable[float], y: Iterable[float], style: str) -> None:
        """A line through points; it is broken where one is not finite or outside. Few points are marked as well."""
        low, high = self._y
        points = [(self.x(a), self.y(b)) if low <= b <= high else None for a, b in zip(x, y, strict=True)]
        path, pen = [], "M"
        for point in points:
            if point is None:
                pen = "M"
            else:
                path.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
                pen = "L"
        self._parts.append(Markup('<path class="line {}" d="{}"/>').format(style, "".join(path)))
        if len(points) <= 12:
            colour = style.split()[0].replace("l", "f")
            for point in points:
                if point is not None:
                    self._parts.append(
                        Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(colour, *point)
                    )

    def spread(self, x: Sequence[float], low: Sequence[float], high: Sequence[float], style: str) -> None:
        """A pale area between two lines."""
        there = [i for i in range(len(x)) if math.isfinite(low[i]) and math.isfinite(high[i])]
        edge = [(x[i], high[i]) for i in there] + [(x[i], low[i]) for i in reversed(there)]
        path = "L".join(f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in edge)
        if path:
            self._parts.append(Markup('<path class="spread {}" d="M{}Z"/>').format(style, path))

    def rule(self, y: float, style: str = "rule dots") -> None:
        """A level line."""
        self._parts.append(_line(self._left, self.y(y), self._right, self.y(y), style))

    def upright(self, x: float, style: str = "rule dots") -> None:
        """An upright line."""
        self._parts.append(_line(self.x(x), self._top, self.x(x), self._bottom, style))

    def diagonal(self) -> None:
        """Where x equals y."""
        low, high = max(self._x[0], self._y[0]), min(self._x[1], self._y[1])
        self._parts.append(_line(self.x(low), self.y(low), self.x(high), self.y(high), "rule dots"))

    def bar(self, low: float, high: float, value: float, style: str, tip: str = "") -> None:
        """An upright bar from 0 to a value."""
        x, end = self.x(low), self.x(high)
        top, bottom = sorted((self.y(value), self.y(0)))
        form = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" data-tip="{}"/>')
        self._parts.append(form.format(style, x, top, max(0.5, end - x - 0.6), bottom - top, tip))

    def points(
        self, x: Sequence[float], y: Sequence[float], style: str, tips: Sequence[str], radius: float = 4
    ) -> None:
        """Points, each with what it says."""
        form = Markup('<circle class="mark {}" cx="{:.1f}" cy="{:.1f}" r="{}" data-tip="{}"/>')
        for a, b, tip in zip(x, y, tips, strict=True):
            if math.isfinite(a) and math.isfinite(b):
                self._parts.append(form.format(style, self.x(a), self.y(b), radius, tip))

    def whisker(self, x: float, low: float, high: float, style: str) -> None:
        """An upright error bar."""
        self._parts.append(_line(self.x(x), self.y(low), self.x(x), self.y(high), f"line {style}"))

    def hover(self, x: Sequence[float], tips: Sequence[str], most: int = 150) -> None:
        """Upright strips around these x that tell what is there; of many, some."""
        chosen = np.unique(np.linspace(0, len(x) - 1, min(most, len(x))).round().astype(int))
        at = np.asarray(x, dtype=float)[chosen]
        middles = (at[1:] + at[:-1]) / 2
        edges = np.concatenate([[self._x[0]], middles, [self._x[1]]])
        form = Markup('<rect class="touch" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" data-tip="{}"/>')
        for i, which in enumerate(chosen):
            left, end = self.x(float(edges[i])), self.x(float(edges[i + 1]))
            self._parts.append(form.format(left, self._top, end - left, self._bottom - self._top, tips[which]))

    def svg(self, label: str) -> Markup:
        """The whole chart; `label` says what it shows to those who cannot see it."""
        return frame(self._wide, self._tall, label, self._parts)


def frame(wide: float, tall: float, label: str, parts: Iterable[Markup]) -> Markup:
    """An SVG element around these parts."""
    head = Markup('<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" role="img" ')
    rest = Markup('aria-label="{}" style="max-width:{:.0f}px">{}</svg>')
    return head.format(wide, tall) + rest.format(label, wide * 1.25, Markup("").join(parts))


def standalone(chart: Markup) -> bytes:
    """A chart as a file of its own, with its colours in it."""
    style = Markup("<style>{}{}svg {{ background: var(--card); }}</style>").format(Markup(COLOURS), Markup(STYLE))
    head, tag, body = chart.partition(">")
    return (Markup('<?xml version="1.0" encoding="utf-8"?>\n') + head + tag + style + body).encode()


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    form = Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>')
    return form.format(style, x1, y1, x2, y2)


def _legend_rows(entries: Sequence[tuple[str, str]], wide: float) -> list[list[tuple[str, str]]]:
    """The entries of a legend (style, text) in as many lines as they need."""
    rows: list[list[tuple[str, str]]] = []
    used = math.inf
    for style, text in entries:
        need = 37 + CHARACTER * len(text)
        if used + need > wide:
            rows.append([])
            used = 0.0
        rows[-1].append((style, text))
        used += need
    return rows


# Level bars and heat maps


def level_bars(
    names: Sequence[str], series: Sequence[Sequence[float]], legend: Sequence[str], label: str, wide: int = HALF
) -> Markup:
    """For each name bars that lie one below the other, one for each series of shares from 0 to 1."""
    each = 11
    block = each * len(series) + 8
    left = min(0.4 * wide, 14 + 7.4 * max(len(name) for name in names))
    most = max(max(max(values) for values in series), 1e-9)
    parts = []
    if len(series) > 1:
        at = left
        for i, text in enumerate(legend, 1):
            parts.append(Markup('<rect class="f{}" x="{:.0f}" y="3" width="16" height="9"/>').format(i, at))
            parts.append(Markup('<text x="{:.0f}" y="12">{}</text>').format(at + 21, text))
            at += 37 + CHARACTER * len(text)
    top = 22 if len(series) > 1 else 4
    for row, name in enumerate(names):
        y = top + row * block
        middle = y + each * len(series) / 2 + 4
        parts.append(Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>').format(left - 6, middle, name))
        for i, values in enumerate(series):
            width = (wide - left - 52) * values[row] / most
            form = Markup('<rect class="f{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" data-tip="{}"/>')
            tip = f"{name}\n{legend[i]} {values[row]:.1%}"
            parts.append(form.format(i + 1, left, y + i * each, max(width, 0.5), each - 2, tip))
            form = Markup('<text class="quiet" x="{:.1f}" y="{:.1f}" font-size="10">{:.1%}</text>')
            parts.append(form.format(left + max(width, 0.5) + 4, y + i * each + 9, values[row]))
    return frame(wide, top + block * len(names), label, parts)


def signed_bars(names: Sequence[str], values: Sequence[float], tips: Sequence[str], label: str) -> Markup:
    """Bars that lie one below the other, to the right of a line where values are positive, else to the left."""
    wide, each = HALF, 20
    left = min(0.4 * wide, 14 + 7.4 * max(len(name) for name in names))
    low, high = min(0.0, *values), max(0.0, *values)
    scale = (wide - left - 60) / ((high - low) or 1.0)
    zero = left + 10 - low * scale
    parts = [_line(zero, 0, zero, each * len(names), "axis")]
    for row, (name, value, tip) in enumerate(zip(names, values, tips, strict=True)):
        x, y = zero + min(value, 0.0) * scale, row * each
        form = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>')
        parts.append(form.format(left - 2, y + 14, name))
        form = Markup('<rect class="f{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" data-tip="{}"/>')
        parts.append(form.format(1 if value >= 0 else 2, x, y + 3, max(abs(value) * scale, 0.5), each - 6, tip))
        form = Markup('<text class="quiet" x="{:.1f}" y="{:.1f}" font-size="10">{}</text>')
        parts.append(form.format(max(zero, x + abs(value) * scale) + 4, y + 14, f"{value:.0%}".replace("-", "−")))
    return frame(wide, each * len(names) + 2, label, parts)


def heat_map(names: Sequence[str], values: np.ndarray, tips: Sequence[Sequence[str]], label: str) -> Markup:
    """A square of cells, red for positive values and blue for negative ones, as strong as they are large (up to 1)."""
    n = len(names)
    side = min(44.0, max(14.0, 330 / n))
    parts, top = [], 4.0
    short = [plain_text(name, 26) for name in names]
    longest = WIDEST * max(len(name) for name in short)
    left = 14 + longest
    for i, name in enumerate(short):
        y = top + i * side
        parts.append(
            Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>').format(left - 6, y + side / 2 + 4, name)
        )
        for j in range(n):
            value = float(np.clip(np.nan_to_num(values[i, j]), -1, 1))
            colour = "var(--pos)" if value >= 0 else "var(--neg)"
            form = Markup(
                '<rect class="cell" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" '
                'style="fill:{};fill-opacity:{:.2f}" data-tip="{}"/>'
            )
            parts.append(form.format(left + j * side, y, side, side, colour, 0.03 + 0.95 * abs(value), tips[i][j]))
            if side >= 30 and i != j:
                form = Markup('<text class="inside" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>')
                text = f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
                parts.append(form.format(left + (j + 0.5) * side, y + side / 2 + 4, text))
    bottom = top + n * side + 6
    for j, name in enumerate(short):
        x = left + (j + 0.5) * side
        form = Markup('<text transform="translate({:.1f} {:.1f}) rotate(-50)" text-anchor="end">{}</text>')
        parts.append(form.format(x + 4, bottom + 6, name))
    below = 12 + longest * 0.78  # sin 50°
    return frame(left + n * side + 8, bottom + below, label, parts)


# Pictures


def png(pixels: np.ndarray, effort: int = 9) -> bytes:
    """An image of bytes, (lines, columns, 4): red, green, blue and how opaque, as a PNG file.

    `effort` is what is spent on making it small, from 0 to 9.
    """
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    lines, columns = pixels.shape[:2]
    head = struct.pack(">IIBBBBB", columns, lines, 8, 6, 0, 0, 0)
    raw = b"".join(b"\0" + line.tobytes() for line in pixels)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, effort)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def image(pixels: np.ndarray, x: float, y: float, wide: float, tall: float) -> Markup:
    """A picture in a chart, its pixels sharp."""
    form = Markup(
        '<image class="image" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" preserveAspectRatio="none" '
        'href="data:image/png;base64,{}"/>'
    )
    return form.format(x, y, wide, tall, base64.b64encode(png(pixels)).decode())
