# SPDX-License-Identifier: BSD-2-Clause
"""What chronyd says of itself: parsers of ``chronyc -c`` and the state of a node's clock.

Formats are those of chrony 4.0 to 4.8 (client.c of each tag, and recorded output). Times are seconds,
frequencies ppm. Columns may be added at the end by a later release, so a line needs at least as many
as we read; fewer is an error, never a guess. ``-`` and 4294967295 ("never") are None.
"""

from __future__ import annotations

import csv
import ipaddress
import math
import re
import time
from typing import Callable, NamedTuple, Sequence

from .errors import DeadlineError, ToolError
from .run import Completed, run

# chronyc prints these for "never" and "no interval" (chrony candm.h: (uint32_t)-1, and a poll of 127).
NEVER = 4294967295
NO_INTERVAL = 127
# All that chronyd can mean by its leap status. chronyc has one word more, "Invalid", for a value that is none of them.
NOT_SYNCHRONISED = "Not synchronised"
LEAPS = ("Normal", "Insert second", "Delete second", NOT_SYNCHRONISED)
# chronyc prints every number that is not whole with a point and decimals, never with an exponent; a comma instead of
# the point is two columns here, of which neither has one.
_NUMBER = re.compile(r"-?[0-9]+\.[0-9]+")
_INTEGER = re.compile(r"-?[0-9]+")
_REFID = re.compile(r"[0-9A-Fa-f]{8}")
_REACH = re.compile(r"[0-3]?[0-7]{1,2}")
# NTP has strata 1 to 15; 0 is "not specified", 16 "not synchronised".
_STRATA = range(17)
# Reference ids: nobody followed, and the daemon's own clock (127.127.1.1, `local`).
UNSYNCED_REFID = "00000000"
LOCAL_REFID = "7F7F0101"
# `local` and orphan mode announce at least this stratum here; whoever follows them is one above.
ISLANDED_STRATUM = 10
# A reading older than this many seconds and 8 polls is stale: 8 missed polls empty the reach register.
STALE_S = 600.0
STALE_POLLS = 8
# An update that lies further ahead than this: somebody set the clock back after it. The time is fuzzed by 1 s.
AHEAD_S = 10.0
# Right after a start the daemon's estimate of its own error is a guess (skew of a million ppm); below this many ppm it
# is measured.
SETTLED_PPM = 500.0
# The command socket answers within milliseconds; a daemon that needs this long hangs, seconds.
CHRONYC_TIMEOUT_S = 5.0

DOWN = "down"
UNSYNCHRONISED = "unsynchronised"
ISLANDED = "islanded"
STALE = "stale"
SYNCHRONISED = "synchronised"
UNREADABLE = "unreadable"

RELAY = "relay"
CLIENT = "client"

_MODES = {"^": "server", "=": "peer", "#": "refclock"}
_STATES = {
    "*": "selected",
    "+": "combined",
    "-": "not_combined",
    "?": "unusable",
    "x": "falseticker",
    "~": "too_variable",
}


class DaemonDownError(ToolError):
    """chronyd does not answer: not running, not installed, or another network namespace."""


class Tracking(NamedTuple):
    """The 14 columns of ``chronyc -c tracking``. Signs differ between columns, see each."""

    refid: str  # hex; 00000000 nobody, 7F7F0101 own clock
    source: str  # empty when nobody is followed
    stratum: int  # 0 when nobody is followed
    ref_time: float  # epoch s of the last update, fuzzed by up to 1 s
    system_time_s: float  # + = system clock behind NTP time
    last_offset_s: float  # + = local clock was ahead
    rms_offset_s: float
    frequency_ppm: float  # + = fast
    residual_ppm: float
    skew_ppm: float
    root_delay_s: float  # 0 when following the own clock; a shade below 0 where two clocks differ in frequency
    root_dispersion_s: float
    update_interval_s: float
    leap: str  # Normal, Insert second, Delete second, Not synchronised

    @property
    def followed(self) -> bool:
        """True when the clock follows a source outside itself."""
        return self.refid not in (UNSYNCED_REFID, LOCAL_REFID) and self.leap != NOT_SYNCHRONISED

    @property
    def offset_s(self) -> float | None:
        """How far the system clock is from NTP time, + = ahead; None when there is nothing to be apart from."""
        return -self.system_time_s if self.followed else None

    @property
    def bound_s(self) -> float | None:
        """The most the clock can be wrong (chronyc's manual): |offset| + dispersion + delay / 2. None as offset_s.

        A delay below 0 is an error of measurement, and must not make the clock look better than the rest says.
        """
        if not self.followed:
            return None
        return abs(self.system_time_s) + self.root_dispersion_s + max(0.0, self.root_delay_s) / 2


class Source(NamedTuple):
    """One line of ``chronyc -c sources``."""

    mode: str  # server, peer, refclock
    state: str  # selected, combined, not_combined, unusable, falseticker, too_variable
    name: str  # a name or address; of a refclock its reference id, which is text
    stratum: int
    poll: int  # log2 s
    reach: int  # 8 bits, one per poll; printed in octal
    last_rx_s: int | None  # None: never
    offset_s: float | None  # adjusted; + = local clock ahead; None when nothing was ever received
    measured_s: float | None
    margin_s: float | None  # the source's root distance

    @property
    def reachable(self) -> bool:
        """True when at least one of the last 8 polls was answered."""
        return self.reach != 0


class SourceStats(NamedTuple):
    """One line of ``chronyc -c sourcestats``."""

    name: str
    samples: int
    runs: int
    span_s: int
    frequency_ppm: float
    skew_ppm: float
    offset_s: float
    deviation_s: float


class Activity(NamedTuple):
    """How many sources are in which state of being polled."""

    online: int
    offline: int
    burst_online: int
    burst_offline: int
    unresolved: int


# --- parsers -----------------------------------------------------------------------------------


def parse_tracking(text: str) -> Tracking:
    """The one line of ``chronyc -c tracking``."""
    row = _only(_rows(text, 14, "tracking"), "tracking")
    if not _REFID.fullmatch(row[0]):
        raise _unreadable("tracking", f"reference id {row[0]!r}, which is not 8 hexadecimal digits")
    if row[13] not in LEAPS:
        raise _unreadable("tracking", f"leap status {row[13]!r}")
    numbers = [_number(value, "tracking") for value in row[3:13]]
    tracking = Tracking._make([row[0].upper(), row[1], _stratum(row[2], "tracking"), *numbers, row[13]])
    # Whoever follows anything, be it the own clock, has a stratum of 1 to 15.
    if tracking.stratum == 0 and tracking.refid != UNSYNCED_REFID:
        raise _unreadable("tracking", f"stratum 0 with reference id {tracking.refid}")
    if tracking.stratum > 15 and tracking.leap != NOT_SYNCHRONISED:
        raise _unreadable("tracking", f"stratum {tracking.stratum} with leap status {tracking.leap!r}")
    if tracking.root_dispersion_s < 0:
        raise _unreadable("tracking", f"root dispersion {row[11]}, which is below 0")
    return tracking


def parse_sources(text: str) -> list[Source]:
    """All lines of ``chronyc -c sources``; an empty text is no sources."""
    return [_source(row) for row in _rows(text, 10, "sources")]


def parse_sourcestats(text: str) -> list[SourceStats]:
    """All lines of ``chronyc -c sourcestats``."""
    return [
        SourceStats(
            row[0],
            *[_integer(value, "sourcestats") for value in row[1:4]],
            *[_number(value, "sourcestats") for value in row[4:8]],
        )
        for row in _rows(text, 8, "sourcestats")
    ]


def parse_activity(text: str) -> Activity:
    """The one line of ``chronyc -c activity``."""
    row = _only(_rows(text, 5, "activity"), "activity")
    return Activity(*[_integer(value, "activity") for value in row[:5]])


def _source(row: Sequence[str]) -> Source:
    if row[0] not in _MODES or row[1] not in _STATES:
        raise _unreadable("sources", f"mode {row[0]!r}, state {row[1]!r}")
    last_rx = None if row[6] in ("-", str(NEVER)) else _integer(row[6], "sources")
    measured: list[float | None] = [_number(value, "sources") for value in row[7:10]]
    if last_rx is None:
        # chronyc prints zeros where nothing was ever measured: zero would read as perfect.
        measured = [None, None, None]
    if not _REACH.fullmatch(row[5]):  # int(text, 8) would take "-1" and "0o377"
        raise _unreadable("sources", f"reach {row[5]!r}, which is not 8 bits in octal")
    poll, stratum = _integer(row[4], "sources"), _stratum(row[3], "sources")
    return Source(_MODES[row[0]], _STATES[row[1]], row[2], stratum, poll, int(row[5], 8), last_rx, *measured)


def _stratum(text: str, report: str) -> int:
    value = _integer(text, report)
    if value not in _STRATA:
        raise _unreadable(report, f"stratum {text}")
    return value


def _rows(text: str, least: int, report: str) -> list[list[str]]:
    """Lines as columns; fewer than ``least`` columns is not this report."""
    try:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    except csv.Error as error:  # a field without end; in Python 3.8 a zero byte, too
        raise _unreadable(report, str(error)) from None
    for row in rows:
        if len(row) < least:
            raise _unreadable(report, ",".join(row))
    return rows


def _only(rows: list[list[str]], report: str) -> list[str]:
    if len(rows) != 1:
        raise _unreadable(report, f"{len(rows)} lines")
    return rows[0]


def _number(text: str, report: str) -> float:
    # "nan" compares as smaller than any alarm, and so many digits are infinite.
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise _unreadable(report, f"{text!r} where a number with decimals belongs")
    return float(text)


def _integer(text: str, report: str) -> int:
    # Ten digits hold all that chronyc counts; Python 3.11 refuses to read thousands of them.
    if not _INTEGER.fullmatch(text) or len(text) > 20:
        raise _unreadable(report, f"{text!r} where a whole number belongs")
    return int(text)


def _unreadable(report: str, seen: str) -> ToolError:
    return ToolError(
        f"chronyc -c {report}", seen, "the comma-separated report of chrony 4.0 or later", "see chronyc --version"
    )


# --- asking the daemon -------------------------------------------------------------------------


def ask(report: str, runner: Callable[..., Completed] = run) -> str:
    """What ``chronyc -c REPORT`` prints; DaemonDownError when there is no daemon behind it.

    ``-N`` prints each source by the name it was configured with, not by the address it resolved to.
    """
    argv = ["chronyc", "-c", "-N", report]
    look_at = "systemctl status chrony; journalctl -u chrony"
    try:
        done = runner(argv, CHRONYC_TIMEOUT_S)
    except DeadlineError as error:
        raise DaemonDownError("chronyd", error.seen, "an answer", look_at) from error
    if done.missing:
        raise DaemonDownError(
            "chronyd", "chronyc is not installed", "chrony installed and running", "run the role time_sync"
        )
    # The 5xx replies come on stdout with exit status 1: "506 Cannot talk to daemon".
    if done.rc != 0:
        raise DaemonDownError("chronyd", done.out.strip() or done.said, "a running chronyd", look_at)
    return done.out


class Clock(NamedTuple):
    """Everything asked in one look. ``error`` says why the rest is empty."""

    tracking: Tracking | None
    sources: list[Source]
    error: str | None = None
    down: bool = False


def look(runner: Callable[..., Completed] = run) -> Clock:
    """Tracking and sources of the running daemon; what cannot be read is said, never guessed."""
    try:
        return Clock(parse_tracking(ask("tracking", runner)), parse_sources(ask("sources", runner)))
    except DaemonDownError as error:
        return Clock(None, [], str(error.seen), down=True)
    except ToolError as error:
        return Clock(None, [], error.sentence())


# --- its state ---------------------------------------------------------------------------------


def state_of(clock: Clock, now: float | None = None) -> str:
    """The worst word that is true: down, unreadable, unsynchronised, islanded, stale; else synchronised."""
    if clock.down:
        return DOWN
    tracking = clock.tracking
    if tracking is None:
        return UNREADABLE
    if tracking.refid == UNSYNCED_REFID or tracking.leap == NOT_SYNCHRONISED:
        return UNSYNCHRONISED
    if tracking.refid == LOCAL_REFID or tracking.stratum >= ISLANDED_STRATUM:
        return ISLANDED
    age_s = update_age_s(tracking, now)
    if (
        age_s < -AHEAD_S
        or age_s > stale_after_s(clock.sources)
        or not any(source.reachable for source in clock.sources)
    ):
        return STALE
    return SYNCHRONISED


def settled(clock: Clock, state: str) -> bool:
    """Whether a clock in ``state`` (``state_of``) follows a source and its own error is measured."""
    return state == SYNCHRONISED and clock.tracking is not None and clock.tracking.skew_ppm <= SETTLED_PPM


def update_age_s(tracking: Tracking, now: float | None = None) -> float:
    """Seconds since the last update, by NTP time, as chronyd stamps it.

    A clock that is an hour off and being slewed is an offset, not an old update.
    """
    return (time.time() if now is None else now) + tracking.system_time_s - tracking.ref_time


def stale_after_s(sources: Sequence[Source]) -> float:
    """Seconds after which the last update is too old: 600, or 8 polls of the followed source where that is more."""
    followed = [source for source in sources if source.state == "selected"] or list(sources)
    polls = [source.poll for source in followed if source.poll < NO_INTERVAL]
    return max([STALE_S] + [STALE_POLLS * 2.0**poll for poll in polls])


def canonical(name: str) -> str:
    """One form for each source: an address in its shortest form, a name in lower case without the last dot."""
    bare = str(name).strip().strip("[]").rstrip(".").lower()
    address, percent, zone = bare.partition("%")
    try:
        return str(ipaddress.ip_address(address)) + percent + zone
    except ValueError:
        return bare
