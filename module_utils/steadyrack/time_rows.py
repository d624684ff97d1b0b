# SPDX-License-Identifier: BSD-2-Clause
"""What chronyd says, as rows: time.synchronised, time.sources, time.offset and time.skew.

The order of the verdicts matters: down, unsynchronised, islanded, stale, and only then how far off the
clock may be, for a clock that follows nobody reads an offset of zero.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from . import verdict
from .chronyc import (
    AHEAD_S,
    CLIENT,
    DOWN,
    ISLANDED,
    RELAY,
    STALE,
    SYNCHRONISED,
    UNREADABLE,
    Clock,
    Source,
    Tracking,
    canonical,
    state_of,
    update_age_s,
)  # fmt: skip

# Answers, and agrees with the others; `not_combined` is only further away than the best.
_USABLE = ("selected", "combined", "not_combined")
NOSELECT = "noselect"
LEAP_HINT = (
    "a real one is in IERS Bulletin C; if it is not, find the upstream that lies: chronyc selectdata on the relay"
)


class Neighbours(NamedTuple):
    """What a relay polls beside its upstreams, and who runs the upstreams."""

    peers: Sequence[str] = ()  # the site's other relays: wanted, and no upstreams
    other_sites: Mapping[str, str] = {}  # address -> site; measured (noselect), never followed
    operators: Mapping[str, str] = {}  # upstream -> who runs it
    min_upstreams: int = 0  # fewer that answer are no majority against one liar; 0: nobody counts


def assess(
    clock: Clock,
    subject: str,
    mode: str,
    expected_sources: Iterable[str] | None,
    *,
    alarm_ms: float,
    warn_ms: float | None = None,
    now: float | None = None,
    neighbours: Neighbours | None = None,
) -> list[dict[str, Any]]:
    """The rows time.synchronised, time.sources and time.offset of one host, in that order.

    Whether the clock follows anything comes first: an unsynchronised daemon shows an offset of zero.
    ``expected_sources`` None means nobody said what to expect: the sources are then not judged.
    """
    state = state_of(clock, now)
    rows = [_synchronised_row(clock, subject, mode, state, now)]
    rows += source_rows(clock, subject, expected_sources, mode, neighbours or Neighbours())
    rows.append(_offset_row(clock, subject, state, alarm_ms, warn_ms))
    return rows


def _synchronised_row(clock: Clock, subject: str, mode: str, state: str, now: float | None = None) -> dict[str, Any]:
    tracking = clock.tracking
    row = {
        "expected": SYNCHRONISED,
        "measured": None if tracking is None else _followed(tracking),
        "source": "chronyc tracking",
        "state": state,
    }
    if state == SYNCHRONISED:
        if tracking is not None and tracking.leap != "Normal":
            return verdict.check_row(
                "time.synchronised", subject, verdict.PASS, severity=verdict.WARNING,
                reason=_leap_reason(tracking, now), hint=LEAP_HINT, **row
            )  # fmt: skip
        return verdict.check_row("time.synchronised", subject, verdict.PASS, **row)
    if state == UNREADABLE:
        return verdict.check_row("time.synchronised", subject, verdict.UNKNOWN, reason=clock.error, **row)
    reason, hint = _why_not(clock, mode, state, now)
    return verdict.check_row("time.synchronised", subject, verdict.FAIL, reason=reason, hint=hint, **row)


def _followed(tracking: Tracking) -> str:
    """Whom the clock follows, and the stratum as it is: a relay of Stratum 1 upstreams shows 2, any other more."""
    who = tracking.source or tracking.refid
    return f"{who}, stratum {tracking.stratum}" if tracking.stratum else who


def _leap_reason(tracking: Tracking, now: float | None) -> str:
    """Who announces the leap second and when it would happen: at the end of the UTC month."""
    today = datetime.fromtimestamp(time.time() if now is None else now, timezone.utc)
    first = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    last_day = (first - timedelta(days=1)).strftime("%Y-%m-%d")
    what = {"Insert second": "inserted", "Delete second": "deleted"}.get(tracking.leap)
    if what is None:
        return f"leap status {tracking.leap!r} of {tracking.source or tracking.refid}, which is not known here"
    return f"{tracking.source or tracking.refid} announces that a leap second is {what} at the end of {last_day} UTC"


def _why_not(clock: Clock, mode: str, state: str, now: float | None) -> list[str]:
    """Reason and hint for each state that fails."""
    if state == DOWN:
        return [f"the time daemon is unreachable: {clock.error}", "systemctl status chrony; journalctl -u chrony"]
    if state == ISLANDED:
        who = "local fallback active: this relay follows nobody outside"
        if mode != RELAY:
            who = "the clock runs free (or follows a relay that does)"
        return [who, "chronyc sources on the relay; is NTP (UDP 123) let out there?"]
    if state == STALE:
        return [_stale_reason(clock, now), "chronyc sources; is UDP 123 to the sources open?"]
    liars = [source.name for source in clock.sources if source.state == "falseticker"]
    if liars:
        return ["the sources disagree and no majority is left: " + ", ".join(liars), "chronyc sources on each relay"]
    silent = [source.name for source in clock.sources if not source.reachable]
    if not clock.sources:
        return ["no sources: none configured, or none of their names resolves", "chronyc -N sources -a"]
    if len(silent) == len(clock.sources):
        return ["no source answers: " + ", ".join(silent), "is UDP 123 to the sources open, and do they run?"]
    return ["no source is selected yet", "chronyc waitsync 30; chronyc selectdata"]


def _stale_reason(clock: Clock, now: float | None) -> str:
    age_s = 0.0 if clock.tracking is None else update_age_s(clock.tracking, now)
    if age_s < -AHEAD_S:
        return f"the last answer lies {-age_s:.0f} s ahead of this clock: somebody has set it back since"
    how_long = "for 8 polls" if not any(source.reachable for source in clock.sources) else "for a long time"
    return f"no source has answered {how_long}: the last update is {max(age_s, 0.0):.0f} s old"


def _offset_row(clock: Clock, subject: str, state: str, alarm_ms: float, warn_ms: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"expected": alarm_ms, "unit": "ms", "source": "chronyc tracking"}
    bound_s = None if clock.tracking is None else clock.tracking.bound_s
    if state != SYNCHRONISED or bound_s is None:
        # Not zero: there is nothing this clock could be apart from.
        return verdict.check_row(
            "time.offset", subject, verdict.UNKNOWN, state=state, reason=f"the clock is {state}", **row
        )
    row["measured"] = round(bound_s * 1000, 6)
    if bound_s * 1000 > alarm_ms:
        reason = f"the clock may be off by {bound_s * 1000:.3f} ms, the alarm is at {alarm_ms:g} ms"
        hint = "chronyc tracking; chronyc sourcestats; look for a bad upstream or a congested link"
        return verdict.check_row("time.offset", subject, verdict.FAIL, state="alarm", reason=reason, hint=hint, **row)
    if warn_ms is not None and bound_s * 1000 > warn_ms:
        reason = f"the clock may be off by {bound_s * 1000:.3f} ms, above the warning level of {warn_ms:g} ms"
        return verdict.check_row(
            "time.offset", subject, verdict.PASS, state="warning", severity=verdict.WARNING, reason=reason, **row
        )
    return verdict.check_row("time.offset", subject, verdict.PASS, state="ok", **row)


# --- sources -----------------------------------------------------------------------------------


def source_rows(
    clock: Clock,
    subject: str,
    expected: Iterable[str] | None,
    mode: str = CLIENT,
    neighbours: Neighbours = Neighbours(),  # noqa: B008  immutable
) -> list[dict[str, Any]]:
    """time.sources: one row per source, configured or found; the two lists must be equal. A relay has one more.

    Reference clocks are listed and not compared: their id is text, not an address.
    """
    if clock.tracking is None:
        state, reason = DOWN if clock.down else UNREADABLE, clock.error or "no answer"
        return [verdict.check_row("time.sources", subject, verdict.UNKNOWN, state, reason=reason)]
    if expected is None:
        reason = "nobody said which sources to expect"
        return [verdict.check_row("time.sources", subject, verdict.NOT_JUDGED, reason=reason)]
    wanted = {canonical(name): name for name in expected}
    peers = {canonical(name): name for name in neighbours.peers}
    others = {canonical(name): name for name in neighbours.other_sites}
    # Where nobody named the operator, the role writes the source itself.
    operators = {
        canonical(name): who for name, who in neighbours.operators.items() if canonical(who) != canonical(name)
    }
    servers = [source for source in clock.sources if source.mode != "refclock"]
    found = {canonical(source.name) for source in servers}
    upstreams = [source for source in servers if canonical(source.name) in wanted]
    # One silent or lying source among several is what several are for; none left is a failure. A relay's peer is
    # not counted: it may have its time from us.
    usable = any(source.reachable and source.state in _USABLE for source in upstreams)
    rows = []
    for source in servers:
        key = canonical(source.name)
        if key in wanted:
            rows.append(_source_row(source, usable, operators.get(key)))
        elif key in peers:
            rows.append(_peer_row(source))
        elif key in others:
            rows.append(_passive_row(source, NOSELECT, "only measured; time.skew judges it"))
        else:
            rows.append(_foreign_row(source))
    rows += [_missing_row(name) for key, name in {**wanted, **peers, **others}.items() if key not in found]
    rows += [_refclock_row(source) for source in clock.sources if source.mode == "refclock"]
    if mode == RELAY and neighbours.min_upstreams and wanted:
        rows.append(_majority_row(subject, upstreams, len(wanted), neighbours.min_upstreams, operators))
    return rows or [_none_row(subject)]


def _source_row(source: Source, usable: bool, operator: str | None) -> dict[str, Any]:
    row = {
        "expected": "configured",
        "measured": source.state,
        "source": "chronyc sources",
        "state": source.state if source.reachable else _silence(source)[0],
    }
    if source.reachable and source.state not in ("falseticker", "unusable"):
        return verdict.check_row("time.sources", source.name, verdict.PASS, **row)
    reason = f"{source.state}: outvoted or not usable" if source.reachable else _silence(source)[1]
    if operator:
        reason += f" (operator: {operator})"
    if usable:
        return verdict.check_row(
            "time.sources", source.name, verdict.PASS, severity=verdict.WARNING, reason=reason, **row
        )
    return verdict.check_row(
        "time.sources", source.name, verdict.FAIL, reason=reason + ", and no other source is usable",
        hint="is UDP 123 to it open, and does its server run?", **row
    )  # fmt: skip


def _silence(source: Source) -> tuple[str, str]:
    """State and words of a source whose reach is 0: after a start of chronyd that is no silence yet."""
    if source.last_rx_s is None:
        return "unheard", "has not answered since chronyd started"
    return "unreachable", "does not answer: 8 polls in a row"


def _foreign_row(source: Source) -> dict[str, Any]:
    return verdict.check_row(
        "time.sources", source.name, verdict.FAIL, expected="absent", measured=source.state,
        state=source.state if source.reachable else _silence(source)[0], source="chronyc sources",
        reason="a source that is not configured",
        hint="run the role time_sync; look for `chronyc add`, DHCP hooks, other *.sources files",
    )  # fmt: skip


def _peer_row(source: Source) -> dict[str, Any]:
    """The site's other relay. `unusable` is well when it answers: it may follow this relay, or nobody yet."""
    if not source.reachable or source.state == "falseticker":
        reason = "the site's other relay " + ("disagrees" if source.reachable else _silence(source)[1])
        return verdict.check_row(
            "time.sources", source.name, verdict.PASS, severity=verdict.WARNING, expected="peer", measured=source.state,
            state=source.state if source.reachable else _silence(source)[0], source="chronyc sources", reason=reason,
            hint="look at that relay: steadyrack check",
        )  # fmt: skip
    return _passive_row(source, source.state, None)


def _passive_row(source: Source, state: str, reason: str | None) -> dict[str, Any]:
    return verdict.check_row(
        "time.sources", source.name, verdict.PASS, expected="configured", measured=source.state, state=state,
        source="chronyc sources", reason=reason,
    )  # fmt: skip


def _majority_row(
    subject: str, upstreams: Sequence[Source], configured: int, least: int, operators: Mapping[str, str]
) -> dict[str, Any]:
    """How many upstreams answer. With two a lie stops the clock, with one it is believed."""
    answering = [source for source in upstreams if source.reachable]
    silent = [
        source.name + (f" ({operators[canonical(source.name)]})" if canonical(source.name) in operators else "")
        for source in upstreams
        if not source.reachable
    ]
    row: dict[str, Any] = {
        "expected": least,
        "measured": len(answering),
        "unit": "upstreams",
        "source": "chronyc sources",
    }
    if len(answering) >= least:
        return verdict.check_row("time.sources", subject, verdict.PASS, state="majority", **row)
    reason = f"{len(answering)} of {configured} upstreams answer; fewer than {least} cannot outvote one that lies"
    if silent:
        reason += "; silent: " + ", ".join(silent)
    hint = "is UDP 123 let out to them? else name more upstreams: time_sync_upstreams"
    if len(answering) >= 2:
        return verdict.check_row(
            "time.sources", subject, verdict.PASS, "few", severity=verdict.WARNING, reason=reason, hint=hint, **row
        )
    return verdict.check_row("time.sources", subject, verdict.FAIL, "few", reason=reason, hint=hint, **row)


def _missing_row(name: str) -> dict[str, Any]:
    return verdict.check_row(
        "time.sources", name, verdict.FAIL, state="missing", expected="configured", measured="absent",
        source="chronyc sources", reason="configured, but the daemon does not have it: not resolved, or not loaded",
        hint="does the name resolve on this host? then: chronyc reload sources",
    )  # fmt: skip


def _refclock_row(source: Source) -> dict[str, Any]:
    return verdict.check_row(
        "time.sources", source.name, verdict.NOT_JUDGED, state="refclock", source="chronyc sources",
        reason="a reference clock, not a server: not compared with the configured servers",
    )  # fmt: skip


def _none_row(subject: str) -> dict[str, Any]:
    return verdict.check_row(
        "time.sources", subject, verdict.FAIL, state="missing", reason="no sources, and none expected",
        hint="name at least one source in the role time_sync",
    )  # fmt: skip


# --- skew between sites ------------------------------------------------------------------------


def skew_rows(clock: Clock, other_sites: Mapping[str, str], alarm_ms: float) -> list[dict[str, Any]]:
    """time.skew: this relay's clock against each other site's relay, as its noselect source measures it.

    The error of such a measurement is half the way there and back, and what the other relay does not know of
    itself (``margin_s``): the verdict counts only beyond it, in either direction.
    """
    found = {canonical(source.name): source for source in clock.sources}
    return [_skew_row(found.get(canonical(name)), clock, name, site, alarm_ms) for name, site in other_sites.items()]


def _skew_row(source: Source | None, clock: Clock, name: str, site: str, alarm_ms: float) -> dict[str, Any]:
    row: dict[str, Any] = {"expected": alarm_ms, "unit": "ms", "source": "chronyc sources"}
    trouble = None
    if clock.tracking is None:
        trouble = (UNREADABLE if not clock.down else DOWN, clock.error or "no answer")
    elif source is None:
        trouble = ("missing", f"the relay of {site} is not among the sources")
    elif not source.reachable or source.offset_s is None or source.margin_s is None:
        trouble = ("unreachable", f"the relay of {site} does not answer")
    if trouble or source is None or source.offset_s is None or source.margin_s is None:
        state, reason = trouble or ("unreachable", "no measurement")
        hint = "is UDP 123 open between the sites' relays, and does the other one run?"
        return verdict.check_row("time.skew", name, verdict.UNKNOWN, state, reason=reason, hint=hint, **row)
    skew_ms, doubt_ms = source.offset_s * 1000, source.margin_s * 1000
    row["measured"] = round(skew_ms, 6)
    told = f"this relay is {skew_ms:+.3f} ± {doubt_ms:.3f} ms from the relay of {site}, the alarm is at {alarm_ms:g} ms"
    word = beyond(skew_ms, doubt_ms, alarm_ms)
    if word == verdict.PASS:
        return verdict.check_row("time.skew", name, verdict.PASS, "ok", **row)
    if word == verdict.FAIL:
        hint = "steadyrack check on both relays: which one's upstreams lie? chronyc sourcestats"
        return verdict.check_row("time.skew", name, verdict.FAIL, "alarm", reason=told, hint=hint, **row)
    hint = "a long or uneven way between the sites; chronyc ntpdata on the relay shows its delay"
    return verdict.check_row(
        "time.skew", name, verdict.UNKNOWN, "uncertain", reason="too uncertain: " + told, hint=hint, **row
    )


def beyond(value: float, doubt: float, limit: float) -> str:
    """fail: surely above the limit; pass: surely not; unknown: the doubt reaches across it."""
    if abs(value) - doubt > limit:
        return verdict.FAIL
    return verdict.PASS if abs(value) + doubt <= limit else verdict.UNKNOWN
