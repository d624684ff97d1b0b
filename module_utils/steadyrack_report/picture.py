# SPDX-License-Identifier: BSD-2-Clause
"""The same report as one PNG, by matplotlib: for a chat window or a mail."""

from __future__ import annotations

import io
import time
import warnings
from typing import Any, Sequence

from .model import HEADROOM, Host, Report, Upstream, headline, milliseconds, reach_ms
from .scale import LINEAR_MS, OUTSIDE_LINEAR_MS, columns, squeeze, x_ticks, y_label, y_ticks

# Okabe and Ito; told apart by colour-blind readers, and by dashes when printed.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9")
DASHES = ("-", (0, (7, 3)), (0, (2, 2)), (0, (9, 3, 2, 3)), (0, (5, 2)), (0, (1, 3)))
ALARM, WARN, GAP, GREY = "#b3261e", "#a66f00", "#c4c4c4", "#9a9a9a"
# Relays whose sources get a drawing of their own; more would not fit on a screen.
RELAYS = 4
WIDTH_IN, DPI = 9.0, 100
# Above and below each drawing, inches: title and key stand above, hours below.
ABOVE_IN, BELOW_IN, STRIPS_ABOVE_IN = 0.62, 0.32, 0.34
# Columns of a drawing, each with the lowest, mean and highest value in it.
COLUMNS, SOURCE_COLUMNS = 200, 96
# Colours that the file may have: a quarter of the size of one with all of them. Chosen so that rare ones, a thin
# line, are not lost.
PALETTE = 128
# Longer lines than this are cut: a name may be anything.
LABEL = 46


def png(report: Report, dpi: int = DPI) -> bytes:
    """The picture; ImportError where matplotlib is missing."""
    import matplotlib  # noqa: PLC0415 (only the controller has it, and only for this)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415 (matplotlib needs it anyway)

    relays = [host for host in report.hosts if host.upstreams][:RELAYS]
    strips = max(1, len(report.hosts))
    heights = [3.0, 0.55 + 0.2 * strips if strips <= 24 else 0.55 + 0.115 * strips, *([1.9] * len(relays))]
    style: Any = {
        "text.parse_math": False, "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10,
        "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "path.simplify": True,
    }  # fmt: skip
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn as a box
        lines = [_plain(line, 118) for line in headline(report)[:6]]
        head_in = 0.45 + 0.2 * len(lines)
        total = head_in + sum(heights) + (ABOVE_IN + BELOW_IN) * len(heights) - ABOVE_IN + STRIPS_ABOVE_IN + 0.2
        figure = Figure(figsize=(WIDTH_IN, total), dpi=dpi, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        _head(figure, report, lines, total)
        top = total - head_in
        for place, height in enumerate(heights):
            top -= height + (STRIPS_ABOVE_IN if place == 1 else ABOVE_IN)
            axes = figure.add_axes((0.135, top / total, 0.845, height / total))
            top -= BELOW_IN
            if place == 0:
                _overview(axes, report)
            elif place == 1:
                _strips(axes, report)
            else:
                _sources(axes, report, relays[place - 2])
            _hours(axes, report, last=place == len(heights) - 1)
        canvas.draw()
        size = canvas.get_width_height()
        pixels = Image.frombytes("RGBA", size, bytes(canvas.buffer_rgba())).convert("RGB")
    out = io.BytesIO()
    pixels.quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        out, format="png", optimize=True
    )
    return out.getvalue()


def _plain(text: str, most: int = LABEL) -> str:
    """A name as it may be drawn: one line, nothing unprintable, not endless."""
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _head(figure: Any, report: Report, lines: Sequence[str], total: float) -> None:
    shape = "%Y-%m-%d %H:%M"
    span = " to ".join(time.strftime(shape, time.gmtime(at)) for at in (report.since, report.until))
    figure.text(
        0.012, 1 - 0.22 / total, _plain(f"Clocks of {report.inventory}, {span} UTC", 90), size=11, weight="bold"
    )
    for place, line in enumerate(lines):
        figure.text(0.012, 1 - (0.45 + 0.2 * place) / total, line, size=9.5)


def _hours(axes: Any, report: Report, last: bool) -> None:
    ticks = x_ticks(report.since, report.until, 9)
    axes.set_xlim(report.since, report.until)
    axes.set_xticks([at for at, _label in ticks], [label for _at, label in ticks])
    if last:
        axes.set_xlabel("time of day, UTC" if report.until - report.since <= 2 * 86400 else "day, UTC")


def _milliseconds_axis(axes: Any, reach: float, label: str, linear: float = LINEAR_MS) -> None:
    ticks = y_ticks(reach, linear)
    axes.set_ylim(squeeze(-reach, linear), squeeze(reach, linear))
    axes.set_yticks([squeeze(tick, linear) for tick in ticks], [y_label(tick) for tick in ticks])
    axes.set_ylabel(label)
    axes.grid(True, color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)


def _limits(axes: Any, report: Report, alarm_ms: float, warn_ms: float | None, linear: float = LINEAR_MS) -> None:
    for value, colour, dash, name in ((alarm_ms, ALARM, (0, (6, 3)), "alarm"), (warn_ms, WARN, (0, (2, 3)), "warning")):
        if value is None:
            continue
        for side in (value, -value):
            axes.axhline(squeeze(side, linear), color=colour, linewidth=1, linestyle=dash)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.text(
            report.since, squeeze(value, linear), f" {name} {value:g} ms", color=colour, size=7.5, va="center", bbox=box
        )


class _Pen:
    """How curves of one drawing are drawn."""

    def __init__(self, axes: Any, report: Report, limit_ms: float, number: int, linear: float = LINEAR_MS) -> None:
        self.axes, self.report, self.limit_ms, self.number, self.linear = axes, report, limit_ms, number, linear

    def curve(self, points: Sequence[Any], colour: str, dash: Any, width: float, label: str) -> None:
        """A line, and lowest to highest as a shade: noise does not hide what lies behind it, a spike shows."""
        report = self.report
        for place, run in enumerate(columns(points, 1, report.since, report.until, self.number)):
            at = [column.at for column in run]
            low, high = ([squeeze(getattr(column, end), self.linear) for column in run] for end in ("low", "high"))
            self.axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
            line = [squeeze(column.shown(self.limit_ms), self.linear) for column in run]
            self.axes.plot(
                at, line, color=colour, linestyle=dash, linewidth=width, marker="." if len(run) == 1 else "",
                label="_nolegend_" if place else label,
            )  # fmt: skip


def _key(axes: Any, title: str, number: int) -> None:
    """The title, and between it and the drawing the key; first what was drawn last, on top."""
    handles, labels = axes.get_legend_handles_labels()
    rows = -(-len(handles) // number)
    axes.set_title(title, pad=4 + 13 * rows)
    if handles:
        axes.legend(
            handles[::-1], labels[::-1], loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=number, fontsize=7.5,
            frameon=False, borderaxespad=0, labelspacing=0.2, columnspacing=1.2,
        )  # fmt: skip


def _overview(axes: Any, report: Report) -> None:
    """All clocks; the worst are named and coloured, with their bounds as far as the line is one of few."""
    drawn = [host for host in report.hosts if any(point[1] is not None for point in host.points)]
    few, pen = len(drawn) <= len(COLOURS), _Pen(axes, report, report.warn_ms, COLUMNS)
    _milliseconds_axis(axes, reach_ms(report), "offset, ms\n(+ = clock ahead)")
    for host in reversed(drawn[len(COLOURS) :]):
        pen.curve(host.points, GREY, "-", 0.5, "_nolegend_")
    for place, host in reversed(list(enumerate(drawn[: len(COLOURS)]))):
        label = f"{_plain(host.name, 24)} (worst {milliseconds(host.worst_ms)})"
        pen.curve(host.points, COLOURS[place], DASHES[place], 1.5, label)
    _limits(axes, report, report.alarm_ms, report.warn_ms)
    more = "" if few else f"; the {len(COLOURS)} worst in colour, {len(drawn) - len(COLOURS)} more in grey"
    _key(axes, f"Offset of every clock: line mean (beyond warning: extreme), shade lowest to highest{more}", 3)
    if not drawn:
        axes.text(0.5, 0.6, "no data from any host", ha="center", transform=axes.transAxes, size=13, color=ALARM)


SHADES = ("#dcebf5", "#f3c553", "#b3261e")  # below warning, between, above alarm: also light to dark in grey


def _strips(axes: Any, report: Report) -> None:
    """A row a host: how wrong its clock can have been. Hatched: nobody knows."""
    for row, host in enumerate(report.hosts):
        place = (row - 0.38, 0.76)
        whole = [(report.since, report.until - report.since)]
        axes.broken_barh(whole, place, facecolor="#f1f1f1", edgecolor=GAP, hatch="/////", linewidth=0)
        for shade, spans in zip(SHADES, _spans(report, host)):
            axes.broken_barh(spans, place, facecolor=shade, edgecolor=shade, linewidth=0.5)
        for at, _before, _after in host.jumps:
            axes.plot([at], [row], marker="v", color="black", markersize=4, clip_on=True)
        if host.reason:
            axes.text(
                report.since, row, f"  no data: {_plain(host.reason, 90)}", va="center", size=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
            )  # fmt: skip
    small = 8 if len(report.hosts) <= 24 else 6
    axes.set_yticks(range(len(report.hosts)), [_plain(host.name, 20) for host in report.hosts], size=small)
    axes.set_ylim(len(report.hosts) - 0.5, -0.5)
    axes.set_title("How wrong each can have been: yellow above warning, red above alarm, hatched unknown, ▼ jump")
    axes.tick_params(axis="y", length=0)


def _spans(report: Report, host: Host) -> list[list[tuple[float, float]]]:
    """(from, width) of the stretches below warning, between, and above alarm; neighbours of one kind are one."""
    spans: list[list[tuple[float, float]]] = [[], [], []]
    ends = [point[0] for point in host.points[1:]] + [report.until]
    for (at, offset, bound), end in zip(host.points, ends):
        if offset is None or end <= at:
            continue
        worst = max(abs(offset), bound or 0.0)
        mine = spans[(worst > host.warn_ms) + (worst > host.alarm_ms)]
        if mine and abs(sum(mine[-1]) - at) < 1:
            mine[-1] = (mine[-1][0], end - mine[-1][0])
        else:
            mine.append((at, end - at))
    return spans


def _sources(axes: Any, report: Report, host: Host) -> None:
    """What a relay sees of its sources; the one furthest off is named first."""
    ordered: list[Upstream] = sorted(host.upstreams, key=lambda source: -abs(source.median_ms))
    seen = [abs(p[1]) for source in ordered for p in source.points if p[1] is not None]
    _milliseconds_axis(
        axes, HEADROOM * max([host.alarm_ms, *seen]), "source, ms\n(+ = source ahead)", OUTSIDE_LINEAR_MS
    )
    pen = _Pen(axes, report, host.alarm_ms, SOURCE_COLUMNS, OUTSIDE_LINEAR_MS)
    for place, source in reversed(list(enumerate(ordered))):
        kind = "" if source.kind == "upstream" else f", {source.kind}"
        label = _plain(f"{source.label}{kind}: {milliseconds(source.median_ms)} ms", 52)
        pen.curve(source.points, COLOURS[place % 6], DASHES[place % 6], 1.3, label)
    _limits(axes, report, host.alarm_ms, None, OUTSIDE_LINEAR_MS)
    _key(axes, f"Sources of {_plain(host.name)} against its own time; median", 3)
