# SPDX-License-Identifier: BSD-2-Clause
"""The page: one HTML file with drawings in it and nothing from elsewhere; for a phone, in light and dark."""

from __future__ import annotations

import time
from html import escape
from typing import Any, Iterable, Mapping, Sequence

from .model import (
    FALLBACK,
    HEADROOM,
    Host,
    Point,
    Report,
    Skew,
    Upstream,
    clock_text,
    duration,
    headline,
    milliseconds,
    reach_ms,
)  # fmt: skip
from .scale import LINEAR_MS, OUTSIDE_LINEAR_MS, columns, squeeze, x_ticks, y_label, y_ticks
from .style import STYLE

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 480, 52, 6, 8, 24
# Columns of a drawing, each with the lowest, mean and highest value in it; of a curve among many.
COLUMNS, COARSE, SOURCE_COLUMNS = 210, 120, 96
# A gap narrower than this could not be seen, in units of the drawing.
SLIVER = 1.5
# Distinguishable by colour-blind readers (Okabe and Ito); beyond these, lines are grey.
COLOURS = 6
READING = (
    "Offset: the host's clock minus the time it follows, + = ahead. Near zero the axis is linear, beyond 0.1 ms it "
    "counts powers of ten. The line is the mean, beyond the warning line the extreme; the shade goes from lowest to "
    "highest. Further below, pale: the clock was certainly within; hatched: nobody knows; hatched the other "
    "way: local fallback, the clock followed its own oscillator or a relay that did, and reads 0 for it; ▼: a jump."
)
COMPARING = (
    "Each clock against the time it follows: two that follow different relays are compared as if these agreed. "
    "Whether they do, the relays' drawings show."
)
DASHES = ("", "7 3", "2 2", "9 3 2 3", "5 2", "1 3")


class Line:
    """A curve with its look."""

    def __init__(self, label: str, points: Sequence[Point], colour: str, dash: str = "", width: float = 1.6) -> None:
        self.label, self.points, self.colour, self.dash, self.width = label, points, colour, dash, width


class Frame:
    """One drawing's axes."""

    def __init__(
        self, report: Report, reach: float, height: int, lowest: float | None = None, linear: float = LINEAR_MS
    ) -> None:
        self.linear, self.limit_ms = linear, report.warn_ms
        self.since, self.until, self.height = report.since, max(report.until, report.since + 1), height
        self.high, self.low = squeeze(reach, linear), squeeze(-reach if lowest is None else lowest, linear)
        self.ticks = [tick for tick in y_ticks(reach, linear) if squeeze(tick, linear) >= self.low]

    def x(self, at: float) -> float:
        share = (at - self.since) / (self.until - self.since)
        return round(LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value_ms: float) -> float:
        share = (self.high - squeeze(value_ms, self.linear)) / (self.high - self.low)
        return round(TOP + min(1.0, max(0.0, share)) * (self.height - TOP - BOTTOM), 1)

    def axes(self, unit: str) -> str:
        """Grid and labels. Where powers of ten are crowded the outer ones and 0 are enough."""
        told, last = [], -99.0
        for tick in self.ticks:
            y = self.y(tick)
            told.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="var(--grid)"/>')
            if abs(y - last) >= 14 or tick == 0:
                told.append(f'<text x="{LEFT - 5}" y="{y + 4}" text-anchor="end">{y_label(tick)}</text>')
                last = y
        for at, label in x_ticks(self.since, self.until):
            x, edge = self.x(at), self.height - BOTTOM
            anchor = "end" if x > WIDTH - 24 else "middle"
            told.append(f'<path d="M{x} {TOP}V{edge}" stroke="var(--grid)"/>')
            told.append(f'<text x="{x}" y="{self.height - 7}" text-anchor="{anchor}">{label}</text>')
        middle = (TOP + self.height - BOTTOM) / 2
        told.append(f'<text transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">{escape(unit)}</text>')
        return "".join(told)

    def limit(self, value_ms: float, name: str) -> str:
        """The alarm or warning line, on both sides where the axis has both."""
        dash = "6 3" if name == "alarm" else "2 3"
        told = []
        for value in (value_ms, -value_ms):
            if self.low < squeeze(value, self.linear) < self.high:
                y = self.y(value)
                told.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="var(--{name})" stroke-dasharray="{dash}"/>')
        return "".join(told)

    def curve(self, line: Line, shade: bool = True, number: int = COLUMNS) -> str:
        """The mean as a line, lowest to highest as a shade, both lifted off the paper at every gap."""
        lines, shades = [], []
        for run in columns(line.points, 1, self.since, self.until, number):
            xs = [self.x(column.at) for column in run]
            spots = [f"{x} {self.y(column.shown(self.limit_ms))}" for x, column in zip(xs, run)]
            lines.append("M" + "L".join(spots if len(spots) > 1 else spots * 2))
            upper = [f"{x} {self.y(column.high)}" for x, column in zip(xs, run)]
            lower = [f"{x} {self.y(column.low)}" for x, column in zip(reversed(xs), reversed(run))]
            shades.append("M" + "L".join(upper + lower) + "Z")
        if not lines:
            return ""
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        look = f'fill="none" stroke="{line.colour}" stroke-width="{line.width}" stroke-linejoin="round"'
        spread = f'<path d="{"".join(shades)}" fill="{line.colour}" fill-opacity=".25"/>' if shade else ""
        return f'{spread}<path {look}{dash} d="{"".join(lines)}"/>'

    def band(self, points: Sequence[Point]) -> str:
        """Where the clock certainly was: as far from 0 as its bound, on both sides."""
        parts = []
        for run in columns(points, 2, self.since, self.until, COARSE):
            upper = [f"{self.x(column.at)} {self.y(column.high)}" for column in run]
            lower = [f"{self.x(column.at)} {self.y(-column.high)}" for column in reversed(run)]
            parts.append("M" + "L".join(upper + lower) + "Z")
        return f'<path d="{"".join(parts)}" fill="var(--band)" fill-opacity=".14"/>' if parts else ""

    def marks(self, host: Host) -> str:
        """Gaps as hatched columns, jumps as triangles at the top."""
        told = []
        for since, until, why in host.gaps:
            left, right = self.x(max(since, self.since)), self.x(min(until, self.until))
            width = max(right - left, SLIVER)
            title = f"{why}, {duration(max(0, until - since))}, from {clock_text(since, self.since, self.until)}"
            left, tall = min(left, WIDTH - RIGHT - width), self.height - TOP - BOTTOM
            box = f'x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{tall}"'
            fill = "alone" if why == FALLBACK else "gap"
            told.append(f'<rect {box} fill="url(#{fill})"><title>{escape(title)}</title></rect>')
            if width > 90:
                place = f'x="{left + width / 2:.1f}" y="{TOP + tall * 0.68:.1f}"'
                told.append(f'<text {place} text-anchor="middle">{escape(why)}</text>')
        for at, before, after in host.jumps:
            x = self.x(at)
            when = clock_text(at, self.since, self.until)
            title = f"jump from {milliseconds(before)} to {milliseconds(after)} ms at {when}"
            told.append(f'<path d="M{x - 4} {TOP}h8l-4 8Z" fill="var(--ink)"><title>{escape(title)}</title></path>')
        return "".join(told)

    def drawing(self, parts: Iterable[str], said: str) -> str:
        """The SVG; ``said`` is for whoever cannot see it."""
        head = f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(said)}">'
        return head + "".join(parts) + "</svg>"


# --- drawings ------------------------------------------------------------------------------------


def overview(report: Report) -> str:
    """All clocks in one drawing: the worst coloured, the rest grey, behind them."""
    frame = Frame(report, reach_ms(report), 260)
    drawn = [host for host in report.hosts if any(p[1] is not None for p in host.points)]
    lines = [
        Line(host.name, host.points, f"var(--c{place})" if place < COLOURS else "var(--soft)",
             DASHES[place] if place < COLOURS else "", 1.7 if place < COLOURS else 0.7)
        for place, host in enumerate(drawn)
    ]  # fmt: skip
    parts = [
        frame.axes("offset, ms (+ = ahead)"),
        frame.limit(report.warn_ms, "warn"),
        frame.limit(report.alarm_ms, "alarm"),
    ]
    grey = [frame.curve(line, False, COARSE) for line in reversed(lines[COLOURS:])]
    parts += [*grey, *map(frame.curve, reversed(lines[:COLOURS]))]
    more = f'<li class="soft">grey: {len(lines) - COLOURS} more</li>' if len(lines) > COLOURS else ""
    return frame.drawing(parts, "Offset of every clock against time") + _key(lines[:COLOURS], more + LIMITS)


LIMITS = (
    '<li><svg viewBox="0 0 30 8"><path d="M0 4H30" stroke="var(--alarm)" stroke-dasharray="6 3"/></svg> alarm</li>'
    '<li><svg viewBox="0 0 30 8"><path d="M0 4H30" stroke="var(--warn)" stroke-dasharray="2 3"/></svg> warning</li>'
)


def _key(lines: Sequence[Line], more: str = "") -> str:
    told = []
    for line in lines:
        look = f'stroke="{line.colour}" stroke-width="2"' + (f' stroke-dasharray="{line.dash}"' if line.dash else "")
        told.append(f'<li><svg viewBox="0 0 30 8"><path d="M0 4H30" {look}/></svg> {escape(line.label)}</li>')
    return f'<ul class="key">{"".join(told)}{more}</ul>'


def skew_drawing(report: Report) -> str:
    """How far the two clocks furthest apart were, of each site and between sites."""
    known = [skew for skew in report.skews if skew.worst_ms is not None]
    if not known:
        return '<p class="soft">Nothing to compare: fewer than two clocks with data at one time.</p>'
    reach = HEADROOM * max([report.alarm_ms, *(skew.worst_ms or 0 for skew in known)])
    frame = Frame(report, reach, 180, lowest=0.0)
    lines = [
        Line(skew.name, skew.points, f"var(--c{place % COLOURS})", DASHES[place % COLOURS])
        for place, skew in enumerate(known)
    ]
    parts = [frame.axes("apart, ms"), *(frame.limit(value, "alarm") for value in sorted({s.alarm_ms for s in known}))]
    return frame.drawing([*parts, *map(frame.curve, lines)], "Largest difference between two clocks") + _key(lines)


def host_card(report: Report, host: Host) -> str:
    """One host: what it is, its drawing, what else was found."""
    bad = host.state in ("no data", "silent", "alarm")
    title = f'<h3>{escape(host.name)} <span class="soft">{escape(host.site)}{", relay" if host.relay else ""}</span> '
    title += f'<span class="tag{" bad" if bad else ""}">{escape(host.state)}</span></h3>'
    if host.reason:
        body = f"<p>no data: {escape(host.reason)}</p>"
    else:
        reach = HEADROOM * max([host.alarm_ms, *(abs(p[1]) for p in host.points if p[1] is not None)])
        frame = Frame(report, reach, 170)
        parts = [
            frame.marks(host), frame.axes("offset, ms (+ = ahead)"), frame.band(host.points),
            frame.limit(host.warn_ms, "warn"), frame.limit(host.alarm_ms, "alarm"),
            frame.curve(Line(host.name, host.points, "var(--c0)")),
        ]  # fmt: skip
        body = frame.drawing(parts, f"Offset of {host.name} against time")
    notes = "".join(f'<div class="soft">{escape(text)}</div>' for text in host.problems)
    return f'<div class="card{" bad" if bad else ""}">{title}{body}{notes}</div>'


def upstream_card(report: Report, host: Host) -> str:
    """What a relay sees of its sources: a line each, a liar stands apart."""
    seen = [abs(p[1]) for source in host.upstreams for p in source.points if p[1] is not None]
    frame = Frame(report, HEADROOM * max([host.alarm_ms, *seen]), 220, linear=OUTSIDE_LINEAR_MS)
    frame.limit_ms = host.alarm_ms
    ordered = sorted(host.upstreams, key=lambda source: -abs(source.median_ms))
    lines = [
        Line(_source_label(source), source.points, f"var(--c{place % COLOURS})", DASHES[place % COLOURS])
        for place, source in enumerate(ordered)
    ]
    parts = [
        frame.axes("source, ms (+ = ahead)"),
        frame.limit(host.alarm_ms, "alarm"),
        *(frame.curve(line, number=SOURCE_COLUMNS) for line in reversed(lines)),
    ]
    body = frame.drawing(parts, f"Sources of {host.name} against its own time") + _key(lines)
    return f'<div class="card"><h3>{escape(host.name)}</h3>{body}</div>'


def _source_label(source: Upstream) -> str:
    kind = "" if source.kind == "upstream" else f", {source.kind}"
    return f"{source.label}{kind}: {milliseconds(source.median_ms)} ms"


# --- tables --------------------------------------------------------------------------------------


def host_table(report: Report) -> str:
    """A row a host, worst first."""
    head = ("host", "site", "state", "note", "now, ms", "worst offset, ms", "at", "worst bound, ms", "above warning",
            "above alarm", "no data for", "gaps", "jumps", "crystal, ppm")  # fmt: skip
    rows = "".join(f"<tr>{''.join(_cells(report, host))}</tr>" for host in report.hosts)
    left = ("site", "state", "note")
    heads = "".join(f'<th class="l">{one}</th>' if one in left else f"<th>{one}</th>" for one in head)
    return f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'


def _cells(report: Report, host: Host) -> list[str]:
    seen, span = host.summary, report.until - report.since
    note = f"no data: {host.reason}" if host.reason else "; ".join(host.problems)
    bad = ' bad"' if host.state in ("no data", "silent", "alarm") else '"'
    cells = [
        f"<td>{escape(host.name)}</td>", f'<td class="l">{escape(host.site)}</td>',
        f'<td class="l{bad}>{host.state}</td>', f'<td class="note">{escape(note)}</td>',
    ]  # fmt: skip
    if host.reason:
        cells += ["<td>–</td>"] * 6 + [f"<td>{duration(span)}</td>"] + ["<td>–</td>"] * 3
    else:
        at = seen.get("worst_at")
        place = "–" if at is None else clock_text(int(report.until - span + at), report.since, report.until)
        # Nobody can tell of that time whether it was in alarm: it must not pass for time that was not.
        unsure = f", unknown for {_span(seen, 'bound_unknown_s')}" if seen.get("bound_unknown_s") else ""
        ppm = seen.get("frequency_ppm")
        crystal = f"{ppm[0]:+.2f} … {ppm[2]:+.2f}".replace("-", "−") if ppm else "–"
        texts = [
            milliseconds(host.now_ms), milliseconds(host.worst_ms), place, milliseconds(host.worst_bound_ms, False),
            _span(seen, "above_warn_s"), _span(seen, "above_alarm_s") + unsure, _span(seen, "gap_s"),
            str(seen.get("gaps", 0)), str(seen.get("jumps", 0)), crystal,
        ]  # fmt: skip
        cells += [f"<td>{escape(text)}</td>" for text in texts]
    return cells


def _span(summary: Mapping[str, Any], key: str) -> str:
    return duration(summary[key]) if summary.get(key) else "0"


def skew_table(skews: Sequence[Skew], since: int, until: int) -> str:
    """A row a group: the pair furthest apart, and how sure that is."""
    rows = ""
    for skew in skews:
        if skew.worst_ms is None:
            cells = ["unknown: fewer than two clocks with data at one time", "", "", "", ""]
        else:
            cells = [
                f"{skew.pair[0]} ahead of {skew.pair[1]}", milliseconds(skew.worst_ms, False),
                f"± {milliseconds(skew.uncertain_ms, False)}", clock_text(skew.at or 0, since, until),
                f"{skew.alarm_ms:g}",
            ]  # fmt: skip
        told = "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
        rows += f'<tr><td>{escape(skew.name)}</td><td class="l">{escape(cells[0])}</td>{told}</tr>'
    heads = ("apart, ms", "uncertain, ms", "at", "alarm, ms")
    head = "<tr><th>where</th><th class='l'>worst pair</th>" + "".join(f"<th>{one}</th>" for one in heads) + "</tr>"
    return f'<div class="wide"><table>{head}{rows}</table></div>'


# --- page ----------------------------------------------------------------------------------------


def page(report: Report) -> str:
    """The whole file. The same report gives the same bytes."""
    title = f"Clocks of {report.inventory}"
    shape = "%Y-%m-%d %H:%M"
    window = (
        f"{time.strftime(shape, time.gmtime(report.since))} to {time.strftime(shape, time.gmtime(report.until))} UTC"
    )
    relays = [host for host in report.hosts if host.upstreams]
    heads = "".join(f"<li>{escape(line)}</li>" for line in headline(report))
    hatch = (
        '<svg width="0" height="0" style="position:absolute"><defs>'
        + "".join(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate({turn})"><path d="M0 0V6" stroke="var(--{colour})" stroke-width="2.4"/>'
            "</pattern>"
            for name, turn, colour in (("gap", 45, "gap"), ("alone", 135, "warn"))
        )
        + "</defs></svg>"
    )
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        "<meta name='color-scheme' content='light dark'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{hatch}",
        f"<h1>{escape(title)}</h1><div class='soft'>{window}</div><ul class='head'>{heads}</ul>",
        "<h2>Offset of every clock</h2>",
        f'<div class="card one">{overview(report)}</div>',
        f"<p class='soft'>{READING}</p>",
        f'<h2>How far apart</h2><div class="card one">{skew_drawing(report)}</div>',
        skew_table(report.skews, report.since, report.until) if report.skews else "",
        f"<p class='soft'>{COMPARING}</p>",
        "<h2>Figures</h2>", host_table(report),
    ]  # fmt: skip
    if relays:
        parts.append("<h2>What the relays see of their sources</h2><div class='grid'>")
        parts += [upstream_card(report, host) for host in relays]
        parts.append("</div>")
    parts.append("<h2>Host by host, worst first</h2><div class='grid'>")
    parts += [host_card(report, host) for host in report.hosts]
    parts.append("</div></body></html>\n")
    return "\n".join(parts)
