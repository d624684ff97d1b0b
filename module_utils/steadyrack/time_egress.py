# SPDX-License-Identifier: BSD-2-Clause
"""time.egress: whether something on this node tried to ask anybody but its relays for the time.

Role rack_firewall rejects and counts such packets; the count only grows, so a leak is its growth. The watch
leaves what it saw last in a file, by which a single look knows whether the growth is of today.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, NamedTuple

from . import verdict
from .errors import DeadlineError, StateFileError, SteadyrackError
from .files import atomic_write, dump_json, load_json
from .run import Completed, run

NOTE_PATH = "etc/steadyrack/rack_firewall.json"
RECORD_PATH = "var/lib/steadyrack/ntp_egress.json"
TABLE = "steadyrack_ntp"
COUNTER = "ntp_egress"
# Asking the kernel takes milliseconds, seconds.
NFT_TIMEOUT_S = 5.0
# A rival daemon tries again within minutes: what has been quiet for longer has ended, seconds.
LEAK_S = 600.0
# The wall clock was set back after the record: then its age says nothing, seconds.
AHEAD_S = 10.0


class Record(NamedTuple):
    """What the counter stood at, and when it was last seen growing."""

    packets: int
    grew_at: float | None = None  # epoch s; None: never seen growing
    grown: int = 0  # packets by which it grew then


def counts(root: str = "/") -> bool | None:
    """Whether the firewall of this host counts such packets; None when role rack_firewall has not run."""
    note = load_json(os.path.join(root, NOTE_PATH))
    if note is None:
        return None
    counters = note.get("counters")
    return COUNTER in counters if isinstance(counters, (list, dict)) else note.get("mode") != "relay"


def read_packets(runner: Callable[..., Completed] = run) -> int:
    """The counter's packets; SteadyrackError when it cannot be told, never 0."""
    argv = ["nft", "-j", "list", "counters", "table", "inet", TABLE]
    done = runner(argv, NFT_TIMEOUT_S)
    if done.missing or done.rc != 0:
        seen = "nft is not installed" if done.missing else done.said
        raise StateFileError(f"counter {COUNTER}", seen, f"table inet {TABLE}", "run the role rack_firewall; as root")
    try:
        listed = [entry["counter"] for entry in json.loads(done.out)["nftables"] if "counter" in entry]
        return int(next(entry["packets"] for entry in listed if entry["name"] == COUNTER))
    except (ValueError, KeyError, TypeError, StopIteration):
        raise StateFileError(
            f"counter {COUNTER}", "no such counter in nft's answer", "its packets", "run the role rack_firewall"
        ) from None


def grown(record: Record | None, packets: int, now: float) -> Record:
    """The record after a look. The first look is the beginning; a smaller count is a counter that began anew."""
    if record is None:
        return Record(packets)
    more = packets - record.packets if packets >= record.packets else packets
    return Record(packets, now, more) if more else record._replace(packets=packets)


def load_record(root: str = "/") -> Record | None:
    """What the watch saw last; None when it left nothing that can be used."""
    try:
        value = load_json(os.path.join(root, RECORD_PATH)) or {}
    except SteadyrackError:
        return None
    packets, grew_at, more = (value.get(key) for key in Record._fields)
    whole = isinstance(packets, int) and isinstance(more, int) and packets >= 0
    if not whole or not (grew_at is None or isinstance(grew_at, (int, float))):
        return None
    return Record(packets, grew_at, more)  # type: ignore[arg-type]


def save_record(record: Record, root: str = "/") -> None:
    """Keep the record; raises what `files` raises."""
    atomic_write(os.path.join(root, RECORD_PATH), dump_json({"version": 1, **record._asdict()}))


def egress_row(subject: str, record: Record, now: float) -> dict[str, Any]:
    """The verdict on a record that is up to date."""
    row: dict[str, Any] = {"expected": 0, "measured": record.packets, "unit": "packets", "source": "nft"}
    age_s = None if record.grew_at is None else now - record.grew_at
    if age_s is not None and -AHEAD_S <= age_s <= LEAK_S:
        reason = (
            f"{record.grown} packets more to time servers that are not its relays, {max(age_s, 0):.0f} s ago; rejected"
        )
        hint = "ss -aunp 'dport = 123'; journalctl -k -g ntp-egress; look for a second time daemon: steadyrack check"
        return verdict.check_row("time.egress", subject, verdict.FAIL, "leak", reason=reason, hint=hint, **row)
    quiet = f"{record.packets} packets rejected since the firewall was loaded, none lately" if record.packets else None
    return verdict.check_row("time.egress", subject, verdict.PASS, "quiet", reason=quiet, **row)


def rows(
    subject: str, root: str, now: float, record: Record | None, runner: Callable[..., Completed] = run
) -> tuple[list[dict[str, Any]], Record | None]:
    """The row time.egress, and the record after this look (None: nothing could be read).

    ``record`` is of the look before; without one nothing is known of a count that is not 0.
    """
    try:
        counted = counts(root)
        if counted is None:
            reason = f"/{NOTE_PATH} is not there: the role rack_firewall has not run on this host"
            return [verdict.check_row("time.egress", subject, verdict.NOT_JUDGED, reason=reason)], None
        if not counted:
            reason = "a relay asks time servers outside: nothing is counted here"
            return [verdict.check_row("time.egress", subject, verdict.NOT_JUDGED, reason=reason)], None
        packets = read_packets(runner)
    except (SteadyrackError, DeadlineError) as error:
        reason, hint = error.sentence(), error.next_step
        row = verdict.check_row("time.egress", subject, verdict.UNKNOWN, "unreadable", reason=reason, hint=hint)
        return [row], None
    after = grown(record, packets, now)
    if record is None and packets:
        reason = f"{packets} packets rejected since the firewall was loaded; when, the watch has not recorded"
        hint = "systemctl status steadyrack-time-watch; look again in a minute"
        row = verdict.check_row(
            "time.egress", subject, verdict.UNKNOWN, "unrecorded", expected=0, measured=packets, unit="packets",
            source="nft", reason=reason, hint=hint,
        )  # fmt: skip
        return [row], after
    return [egress_row(subject, after, now)], after
