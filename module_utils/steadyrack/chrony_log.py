# SPDX-License-Identifier: BSD-2-Clause
"""chronyd's own logs: tracking.log, measurements.log, statistics.log, whole, rotated or damaged.

Formats are those of chrony 4.0 to 4.8 (reference.c, ntp_core.c, sourcestats.c; the same in all of them). Times are UTC
whatever the host's zone, seconds. One sign everywhere in this project: **+ = that clock is ahead**, of the time it
follows when it is this host's, of this host's time when it is a source's. The logs differ from column to column,
see each parser. A line that cannot be read is left out and counted; it never becomes a zero.
"""

from __future__ import annotations

import calendar
import errno
import gzip
import math
import os
import re
import stat
import time
import zlib
from typing import Callable, Iterable, Iterator, NamedTuple, Sequence

from .chronyc import ISLANDED_STRATUM, SETTLED_PPM

TRACKING, MEASUREMENTS, STATISTICS = "tracking", "measurements", "statistics"
LOG_DIRECTORY = "/var/log/chrony"

# Why an offset is not known, beside silence: the clock follows nobody, or it (or its relay) follows its own oscillator.
UNSYNCHRONISED, LOCAL_FALLBACK, SILENT = "unsynchronised", "local fallback", "nothing logged"
LOCAL_SOURCE = "127.127.1.1"  # chronyd's name for its own clock

_LEAPS = ("N", "+", "-", "?")
# Read from the end in pieces of this size: a day at a poll of 16 s is 0.8 MB.
CHUNK = 1 << 19
# A log is read back at most this far, whatever the window: memory of the node, bytes.
MAX_BYTES = 48 << 20
# With less than this left of it no line can be read any more, bytes.
LONGEST_LINE = 256
# Newer than the end of the window by more than this: the clock was ahead when it wrote, or is behind now, seconds.
AHEAD_S = 60
# An interval above this many times the usual one is a gap; below it a poll or two were lost.
GAP_POLLS = 5
# With fewer intervals than this nobody knows the usual one; then that of a poll of 64 s is taken.
FEW, USUAL_S = 20, 64
LEAST_GAP_S = 20
JUMP_UPDATES = 4


class Entry(NamedTuple):
    """One line of tracking.log: the clock at one update."""

    at: int  # epoch s
    source: str  # whom it follows, an address; empty when nobody
    stratum: int
    frequency_ppm: float  # + = the uncorrected clock runs fast
    settled: bool  # chronyd knows its own error; right after a start it states a guess of a second
    # + = system clock ahead; None when not synchronised, or islanded: there is nothing to be apart from.
    offset_s: float | None
    bound_s: float | None  # the most it can have been wrong since the entry before; None when that is a guess
    islanded: bool = False  # local fallback: what it reads is how well it follows an oscillator, which is perfectly

    @property
    def lost(self) -> str | None:
        """Why the offset is not known from here on; None when it is."""
        if self.offset_s is not None:
            return None
        return LOCAL_FALLBACK if self.islanded else UNSYNCHRONISED


class Sample(NamedTuple):
    """One line of measurements.log or statistics.log: a source as this host sees it."""

    at: int
    source: str
    offset_s: float  # + = the source is ahead of this host's time


class Gap(NamedTuple):
    """A span in which nobody knows the offset."""

    since: int
    until: int
    why: str  # nothing logged, unsynchronised, local fallback, time went back


class Jump(NamedTuple):
    """The offset changed by more than a clock can be bent: the clock was stepped, or its source jumped."""

    at: int
    before_s: float
    after_s: float


class Tail(NamedTuple):
    """The lines of a log that lie in a window, oldest first, and what stood in the way."""

    lines: list[str]
    newest: int | None  # time of the newest line that was seen, in or out of the window
    ahead: int  # lines newer than the window
    problems: list[str]  # one sentence each
    found: bool  # a log by that name exists


# --- lines -------------------------------------------------------------------------------------


def parse_time(date: str, clock: str) -> int | None:
    """Epoch seconds of the first two columns; None when they are none (a banner; INVALID, beyond gmtime's range)."""
    base = _day(date)
    if base is None or len(clock) != 8 or clock[2] != ":" or clock[5] != ":":
        return None
    try:
        hour, minute, second = int(clock[:2]), int(clock[3:5]), int(clock[6:])
    except ValueError:
        return None
    # 60 is a leap second.
    good = 0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 60
    return base + hour * 3600 + minute * 60 + second if good else None


_days: dict[str, int | None] = {}


def _day(date: str) -> int | None:
    """Epoch seconds of a date's midnight. A log has few dates and many lines, hence the memory."""
    if date not in _days:
        if len(_days) > 4000:
            _days.clear()
        try:
            year, month, day = (int(word) for word in date.split("-"))
            # calendar.timegm alone takes 31 February for 3 March.
            good = year >= 1970 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
            _days[date] = calendar.timegm((year, month, day, 0, 0, 0)) if good else None
        except (ValueError, OverflowError):
            _days[date] = None
    return _days[date]


def parse_tracking(line: str, follows: bool = True) -> Entry | None:
    """date time source stratum freq skew offset leap combined sd remaining delay dispersion maxerror; None: none of it.

    The offset of the system clock is `offset` (+ = fast) minus `remaining` (+ = slow, the correction that is still
    outstanding): `offset` alone reads about 0 while a clock is being bent, and always where chronyd may not touch it.
    `maxerror` covers the time since the entry before and knows nothing of an offset that has just appeared, so the
    bound is at least |offset| + delay / 2 + dispersion, which is what chronyc's manual gives. After an entry that
    was a guess maxerror still is one; ``follows`` says that the entry before was none. On local fallback all of these
    are about an oscillator that nobody compares with anything, and say nothing of the time.
    """
    words = line.split()
    # Without a source the third column is blank.
    blank = len(words) > 6 and words[6] in _LEAPS
    if len(words) < 14 - blank or words[7 - blank] not in _LEAPS:
        return None
    at = parse_time(words[0], words[1])
    try:
        stratum = int(words[3 - blank])
        frequency, skew = float(words[4 - blank]), float(words[5 - blank])
        offset, remaining, delay, dispersion, most = (float(words[place - blank]) for place in (6, 10, 11, 12, 13))
    except ValueError:
        return None
    numbers = (frequency, skew, offset, remaining, delay, dispersion, most)
    # A line cut within its last number (9.999e-05 as 9.999e-0) would read ten thousand times too large.
    if at is None or not all(map(math.isfinite, numbers)) or not _whole(words[13 - blank]):
        return None
    source = "" if blank else words[2]
    if source == LOCAL_SOURCE or (words[7 - blank] != "?" and stratum >= ISLANDED_STRATUM):
        return Entry(at, source, stratum, frequency, False, None, None, True)
    if words[7 - blank] == "?":
        return Entry(at, source, stratum, frequency, False, None, None)
    ahead, settled = offset - remaining, skew <= SETTLED_PPM
    bound = max(most if follows else 0.0, abs(ahead) + delay / 2 + dispersion) if settled else None
    return Entry(at, source, stratum, frequency, settled, ahead, bound)


def parse_entries(lines: Iterable[str]) -> tuple[list[Entry], int]:
    """The entries of tracking.log in its order, and how many lines were neither entry nor banner."""
    entries: list[Entry] = []
    damaged = 0
    for line in lines:
        entry = parse_tracking(line, bool(entries) and entries[-1].settled)
        if entry is not None:
            entries.append(entry)
        elif not is_banner(line):
            damaged += 1
    return entries, damaged


def is_banner(line: str) -> bool:
    """Every 32 entries chronyd writes the names of the columns between two lines of `=`."""
    return not line.strip() or line.startswith(("=", "   Date"))


def _whole(number: str) -> bool:
    return re.fullmatch(r"-?\d\.\d{3}e[+-]\d{2,3}", number) is not None


def parse_measurement(line: str) -> Sample | None:
    """date time source leap stratum tests tests tests poll poll score offset …; None for what chronyd did not use.

    `offset` is + when the local clock is slow, that is when the source is ahead.
    """
    words = line.split()
    if len(words) < 17 or words[3] not in _LEAPS or "0" in words[5] + words[6] + words[7]:
        return None
    return _sample(words, words[11])


def parse_statistic(line: str) -> Sample | None:
    """date time source deviation offset …, where `offset` is + when the local clock is fast: the opposite sign."""
    words = line.split()
    return _sample(words, words[4], -1.0) if len(words) >= 13 else None


def _sample(words: Sequence[str], offset: str, sign: float = 1.0) -> Sample | None:
    at = parse_time(words[0], words[1])
    if at is None or not _whole(offset):
        return None
    return Sample(at, words[2], sign * float(offset))


# --- files -------------------------------------------------------------------------------------


def stamp(at: float) -> str:
    """As the logs write a time; two stamps compare like their times."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def log_files(directory: str, name: str) -> list[str]:
    """Paths of a log, newest first: NAME.log, then .1, .2.gz … or -20261130.gz … as logrotate leaves them."""
    plain = f"{name}.log"
    numbered, dated = [], []
    for entry in set(os.listdir(directory)):
        match = re.fullmatch(re.escape(plain) + r"(?:\.(\d{1,5})|-(\d{8,12}))(\.gz)?", entry)
        # While it is being compressed a file stands there twice.
        if not match or (match[3] and os.path.exists(os.path.join(directory, entry[: -len(".gz")]))):
            continue
        if match[1]:
            numbered.append((int(match[1]), entry))
        else:
            dated.append((match[2], entry))
    names = [plain] if os.path.lexists(os.path.join(directory, plain)) else []
    names += [entry for _key, entry in sorted(numbered)] + [entry for _key, entry in sorted(dated, reverse=True)]
    return [os.path.join(directory, entry) for entry in names]


def read_tail(directory: str, name: str, since: float, until: float) -> Tail:
    """The lines of a log whose time lies in the window; reads no more of it than it must.

    Times need not grow: a log whose clock was set back is read until a whole piece lies before the window.
    """
    problems: list[str] = []
    try:
        paths = log_files(directory, name)
    except OSError as error:
        return Tail([], None, 0, [_sentence(directory, error)], False)
    low, high = stamp(since), stamp(min(until + AHEAD_S, 253402300799))
    groups: list[list[str]] = []
    newest, ahead, left = "", 0, MAX_BYTES
    for path in paths:
        any_inside = False
        try:
            for piece in _pieces(path, left):
                left -= sum(map(len, piece)) + len(piece)
                inside = [line for line in piece if low <= line[:19] <= high and line[:1].isdigit()]
                later = [line[:19] for line in piece if line[:19] > high and parse_time(line[:10], line[11:19])]
                newest = max([newest, *(line[:19] for line in inside[-1:]), *later])
                newest = max([newest, *(line[:19] for line in piece[-1:] if parse_time(line[:10], line[11:19]))])
                ahead += len(later)
                groups.append(inside)
                any_inside = any_inside or bool(inside or later)
                if not inside and not later and any(line[:1].isdigit() for line in piece):
                    break
                if left < LONGEST_LINE:
                    problems.append(f"{path}: only its newest {MAX_BYTES >> 20} MB were read")
                    break
            # An empty file has just been rotated; one that lies before the window ends the search.
            if left < LONGEST_LINE or (not any_inside and os.path.getsize(path) > 0):
                break
        except (OSError, EOFError, zlib.error) as error:
            problems.append(_sentence(path, error))
            continue
    lines = [line for group in reversed(groups) for line in group]
    return Tail(lines, parse_time(newest[:10], newest[11:19]), ahead, problems, bool(paths))


def _pieces(path: str, most: int) -> Iterator[list[str]]:
    """The lines of a file in pieces, last piece first. A last line without its newline is still being written."""
    if path.endswith(".gz"):
        yield _lines(_unpacked(path, max(most, 0)))
        return
    # O_NONBLOCK: a pipe by that name must not hang us.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as _:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        end, rest = seen.st_size, b""
        while end > 0:
            start = max(0, end - CHUNK)
            data = os.pread(descriptor, end - start, start) + rest
            rest = b""
            if start > 0:
                head, newline, data = data.partition(b"\n")
                rest = head + newline
                if not newline:
                    data = b""
            end = start
            yield _lines(data)


def _unpacked(path: str, most: int) -> bytes:
    """The last ``most`` bytes of an archive, from the begin of a line; it is unpacked whole, and never kept whole."""
    data, cut = bytearray(), False
    with gzip.open(path, "rb") as packed:
        while True:
            piece = packed.read(CHUNK)
            if not piece:
                break
            data.extend(piece)
            if len(data) > most:
                del data[: len(data) - most]
                cut = True
    return bytes(data.partition(b"\n")[2] if cut else data)


def _lines(data: bytes) -> list[str]:
    whole = data[: data.rfind(b"\n") + 1]
    # Zeros are what a power cut leaves in a file that was growing.
    return whole.replace(b"\0", b"").decode("utf-8", "replace").splitlines()


def _sentence(path: str, error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return f"{path} is not there"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} is not readable by uid {os.geteuid()}"
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{path} cannot be read: {told}"


# --- curves ------------------------------------------------------------------------------------


def usual_interval(times: Sequence[int]) -> float:
    """The median time between two entries, seconds."""
    steps = sorted(later - sooner for sooner, later in zip(times, times[1:]) if later >= sooner)
    return float(steps[len(steps) // 2]) if len(steps) >= FEW else float(USUAL_S)


def gap_limit(times: Sequence[int]) -> float:
    """Longer than this between two entries is a gap, seconds."""
    return max(LEAST_GAP_S, GAP_POLLS * usual_interval(times))


def find_gaps(entries: Sequence[Entry], since: float, until: float, limit_s: float) -> list[Gap]:
    """Where the offset is unknown, in the window, in the order of the log; before the first and after the last, too."""
    gaps: list[Gap] = []
    known_until, lost = int(since), SILENT
    for entry in entries:
        silent = entry.at - known_until > limit_s
        if entry.at < known_until - 1:
            gaps.append(Gap(entry.at, known_until, "time went back"))
        elif lost != SILENT or silent:
            gaps.append(Gap(known_until, entry.at, lost))
        lost = entry.lost or SILENT
        known_until = entry.at
    if until - known_until > limit_s or (lost != SILENT and until > known_until):
        gaps.append(Gap(known_until, int(until), lost))
    return _joined(gaps)


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    joined: list[Gap] = []
    for gap in gaps:
        if joined and joined[-1].until == gap.since and joined[-1].why == gap.why in (UNSYNCHRONISED, LOCAL_FALLBACK):
            joined[-1] = Gap(joined[-1].since, gap.until, gap.why)
        else:
            joined.append(gap)
    return joined


def runs(entries: Sequence[Entry], limit_s: float) -> list[list[Entry]]:
    """Stretches in which the offset is known throughout: a line may be drawn within one, never between two."""
    found: list[list[Entry]] = []
    open_run = False
    for entry in entries:
        if entry.offset_s is None:
            open_run = False
            continue
        if open_run and -1 <= entry.at - found[-1][-1].at <= limit_s:
            found[-1].append(entry)
        else:
            found.append([entry])
        open_run = True
    return found


def find_jumps(stretches: Iterable[Sequence[Entry]], slew_ppm: float = 500.0, least_s: float = 0.001) -> list[Jump]:
    """Where the offset changed faster than the clock is ever bent (maxslewrate), and by more than ``least_s``.

    chronyd takes a few updates to believe a jump; what it says meanwhile belongs to the same one.
    """
    found: list[Jump] = []
    for stretch in stretches:
        last = -JUMP_UPDATES
        for place in range(1, len(stretch)):
            one, other = stretch[place - 1].offset_s or 0.0, stretch[place].offset_s or 0.0
            span_s = stretch[place].at - stretch[place - 1].at + 1
            if abs(other - one) <= max(least_s, 2e-6 * slew_ppm * span_s):
                continue
            if place - last < JUMP_UPDATES:
                found[-1] = found[-1]._replace(after_s=other)
            else:
                found.append(Jump(stretch[place].at, one, other))
            last = place
    return found


def seconds_above(stretches: Iterable[Sequence[Entry]], limit_s: float) -> float:
    """How long the clock may have been off by more than ``limit_s``: each entry counts until the next of its stretch.

    Without a bound the offset counts, for the bound is never less; what that leaves open is ``seconds_unbounded``.
    """
    return _seconds(stretches, lambda one: _at_least(one) > limit_s)


def seconds_unbounded(stretches: Iterable[Sequence[Entry]], limit_s: float) -> float:
    """How long nobody can tell whether the clock was off by more: no bound, and an offset that is below the limit."""
    return _seconds(stretches, lambda one: one.bound_s is None and _at_least(one) <= limit_s)


def _at_least(entry: Entry) -> float:
    return abs(entry.offset_s or 0.0) if entry.bound_s is None else entry.bound_s


def _seconds(stretches: Iterable[Sequence[Entry]], counts: Callable[[Entry], bool]) -> float:
    total = 0.0
    for stretch in stretches:
        total += sum(max(0, after.at - before.at) for before, after in zip(stretch, stretch[1:]) if counts(before))
    return total


def thinned(
    stretch: Sequence[Entry] | Sequence[Sample], width_s: float, keys: Sequence[Callable[[Entry | Sample], float]]
) -> list[Entry | Sample]:
    """Of each ``width_s`` seconds the entries that are extreme by one of ``keys``: a spike is never lost."""
    kept: list[Entry | Sample] = []
    bucket: list[Entry | Sample] = []
    for entry in stretch:
        if bucket and entry.at // width_s != bucket[0].at // width_s:
            kept += _extremes(bucket, keys)
            bucket = []
        bucket.append(entry)
    return kept + _extremes(bucket, keys)


def _extremes(
    bucket: Sequence[Entry | Sample], keys: Sequence[Callable[[Entry | Sample], float]]
) -> list[Entry | Sample]:
    places = range(len(bucket))
    chosen = {max(places, key=lambda place: key(bucket[place])) for key in keys} if bucket else set()
    return [bucket[place] for place in sorted(chosen)]
