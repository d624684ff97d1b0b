"""Every clock follows what the inventory says it follows, and is as right as the inventory wants it.

Read from chronyd itself (`chronyc -c`, comma separated, the same from 4.0 to 4.8), systemd and /proc.
"""

from __future__ import annotations

import csv
import ipaddress
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from acceptance import packages, systemd
from acceptance.addresses import canonical
from acceptance.nodes import Node, UnreadableError
from acceptance.rows import FAIL, NOT_JUDGED, PASS, UNKNOWN, Row, judged, row

pytestmark = pytest.mark.groups("relays", "gpu_nodes")
Record = Callable[[Iterable[Row]], None]

# The unit and its configuration, by family. Of names and paths those count that the node has.
UNITS = ("chrony.service", "chronyd.service")
CONFIGURATIONS = ("/etc/chrony/chrony.conf", "/etc/chrony.conf")
SOURCE_DIRECTORY = "/etc/chrony/steadyrack.d"
OUR_SOURCES = f"{SOURCE_DIRECTORY}/steadyrack.sources"  # chronyd reads every *.sources beside it, too
OTHER_KEEPERS = ("systemd-timesyncd.service", "ntp.service", "ntpsec.service", "openntpd.service", "ntpd.service")

NOBODY, ITSELF = "00000000", "7F7F0101"  # reference ids of chronyc: no source, and the daemon's own clock
FREE_STRATUM = 10  # `local` and orphan mode announce this or more; so does whoever follows such a clock
NEVER = "4294967295"
STALE_S, STALE_POLLS = 600.0, 8.0  # 8 missed polls empty the reach register
UPSTREAMS_ANSWERING = 3  # the fewest that can outvote one liar
# Nobody has these (RFC 5737, RFC 3849): a relay that serves them serves the world.
STRANGERS = ("192.0.2.1", "2001:db8:ffff:ffff::1")
# A daemon that was just started is waited for on the node: some seconds until it follows a source, and two more until
# its skew (ppm) is a measurement and no longer a million. One that has been up is not waited for at all.
SETTLE_S, SETTLED_PPM = 20, 500


def reads(node: Node) -> dict[str, Any]:
    """What must be read from a node for these checks."""
    chronyc = ["chronyc", "-c", "-N"]
    return {
        "commands": {
            "chronyc waitsync": {
                "argv": ["chronyc", "waitsync", str(SETTLE_S), "0", str(SETTLED_PPM), "1"],
                "timeout_s": SETTLE_S + 5,
            },
            "chronyc tracking": {"argv": [*chronyc, "tracking"]},
            "chronyc sources": {"argv": [*chronyc, "sources"]},
            **{f"chronyc accheck {one}": {"argv": ["chronyc", "accheck", one]} for one in _probes(node)},
        },
        "units": [*UNITS, *OTHER_KEEPERS],
        "packages": ["chrony"],
        "files": {
            **{path: {"content": True} for path in CONFIGURATIONS},
            f"{SOURCE_DIRECTORY}/*.sources": {"content": True},
            **{folder: {} for folder in _folders()},
        },
        "processes": ["chronyd"],
    }


class Tracking(NamedTuple):
    """The columns of `chronyc -c tracking` that count here. Seconds."""

    refid: str
    source: str
    stratum: int
    updated: float  # epoch
    behind_s: float  # + = the system clock is behind NTP time
    root_delay_s: float
    root_dispersion_s: float
    leap: str

    @property
    def bound_s(self) -> float:
        """The most by which the clock can be wrong (chronyc's manual)."""
        return abs(self.behind_s) + self.root_dispersion_s + self.root_delay_s / 2


class Source(NamedTuple):
    """The columns of `chronyc -c sources` that count here."""

    mode: str  # ^ server, = peer, # reference clock
    state: str  # * selected, + combined, - not combined, ? unusable, x falseticker, ~ too variable
    name: str
    poll: int  # log2 s
    reach: int  # one bit for each of the last 8 polls, printed in octal
    offset_s: float = 0.0  # + = this clock is ahead of the source; 0 as long as nothing was received
    margin_s: float = 0.0  # by how much that can be wrong


def tracking_of(node: Node) -> Tracking:
    columns = _table(node.command("chronyc tracking"), 14, "tracking")[0]
    try:
        return Tracking(
            columns[0].upper(),
            columns[1],
            int(columns[2]),
            float(columns[3]),
            float(columns[4]),
            float(columns[10]),
            float(columns[11]),
            columns[13],
        )
    except ValueError as error:
        raise UnreadableError(f"chronyc -c tracking: {error}") from None


def sources_of(node: Node) -> list[Source]:
    text = node.command("chronyc sources")
    try:
        rows = _table(text, 10, "sources") if text.strip() else []
        return [
            Source(line[0], line[1], line[2], int(line[4]), int(line[5], 8), float(line[7]), float(line[9]))
            for line in rows
        ]
    except ValueError as error:
        raise UnreadableError(f"chronyc -c sources: {error}") from None


def _table(text: str, least: int, report: str) -> list[list[str]]:
    """Lines as columns. A later chrony may add columns at the end, none may lack."""
    lines = [line for line in csv.reader(text.splitlines()) if line]
    if not lines or any(len(line) < least for line in lines):
        raise UnreadableError(f"chronyc -c {report} is not {least} columns: {text.strip()[:200]!r}")
    return lines


def is_relay(node: Node) -> bool:
    return "relays" in node.groups


def upstreams_of(node: Node) -> dict[str, str]:
    """A relay's servers outside. Canonical → as given; an entry may say more than its address."""
    entries = node.setting("time_sync_upstreams")
    names = [entry["address"] if isinstance(entry, dict) else entry for entry in entries]
    return {canonical(name): str(name) for name in names}


def other_sites_of(node: Node) -> dict[str, str]:
    """Relays of other sites, which a relay looks at without following them: canonical address → site."""
    if not is_relay(node) or not node.variables.get("rack_outside_address"):
        return {}
    return {
        canonical(facts["rack_outside_address"]): str(facts.get("rack_site"))
        for facts in node.peers.values()
        if "relays" in facts.get("group_names", [])
        and facts.get("rack_outside_address")
        and facts.get("rack_site") != node.variables.get("rack_site")
    }


def wanted_sources(node: Node) -> dict[str, str]:
    """The only sources that the daemon may have, canonical → as given: those that a relay or a node follows, the
    relays beside a relay, and those of other sites."""
    relays = node.site_relays()
    if is_relay(node):
        beside = [address for name, address in relays.items() if name != node.name]
        return {
            **upstreams_of(node),
            **{canonical(address): address for address in beside},
            **{address: address for address in other_sites_of(node)},
        }
    names = node.variables.get("time_sync_relays") or list(relays.values())
    return {canonical(name): str(name) for name in names}


def served_networks(node: Node) -> list[str]:
    """The networks that a relay serves, as the inventory says."""
    given = [*(node.variables.get("rack_networks") or []), *(node.variables.get("rack_bmc_networks") or [])]
    return node.variables.get("time_sync_client_networks") or given


def _probes(node: Node) -> dict[str, bool]:
    """Addresses to ask a relay about, and whether it should serve each."""
    if not is_relay(node):
        return {}
    networks = [ipaddress.ip_network(network) for network in served_networks(node)]
    inside = {str(network[1] if network.num_addresses > 1 else network[0]): True for network in networks}
    outside = [one for one in STRANGERS if not any(ipaddress.ip_address(one) in network for network in networks)]
    return {**inside, **dict.fromkeys(outside, False)}


def unit_of(node: Node) -> dict[str, str]:
    """The daemon's unit under the name it has here."""
    found = [node.unit(name) for name in UNITS]
    return next((unit for unit in found if systemd.state(unit) != systemd.MISSING), found[0])


def why_not_followed(tracking: Tracking, sources: list[Source], now: float) -> str | None:
    """Why the clock cannot be said to follow anything outside; None when it does."""
    if tracking.refid == NOBODY or tracking.leap == "Not synchronised":
        silent = [source.name for source in sources if not source.reach]
        liars = [source.name for source in sources if source.state == "x"]
        detail = f"; no answer from {', '.join(silent)}" if silent else ""
        return "follows nobody" + (f"; outvoted: {', '.join(liars)}" if liars else "") + detail
    if tracking.refid == ITSELF:
        return "follows its own clock: the local fallback is active"
    if tracking.stratum >= FREE_STRATUM:
        return f"stratum {tracking.stratum}: what it follows runs free"
    polls = [STALE_POLLS * 2.0**source.poll for source in sources if source.state == "*"]
    age_s, limit_s = now - tracking.updated, max([STALE_S, *polls])
    if age_s > limit_s:
        return f"the last update is {age_s:.0f} s old, more than {limit_s:.0f} s"
    if not any(source.reach for source in sources):
        return "no source has answered any of its last 8 polls"
    return None


# --- the checks ----------------------------------------------------------------------------------


@pytest.mark.check("time.daemon")
def test_chronyd_keeps_the_clock_and_nobody_else_does(node: Node, record: Record) -> None:
    unit, package, processes = unit_of(node), node.package("chrony"), node.processes("chronyd")
    good = (
        systemd.state(unit) == systemd.RUNNING
        and systemd.enabled(unit)
        and bool(processes)
        and packages.installed(package)
    )
    found = [
        judged(
            "time.daemon",
            "chronyd",
            good,
            expected="installed, enabled, running",
            state=systemd.state(unit),
            measured=f"package {packages.told(package)}; {systemd.told(unit)}; {len(processes)} processes",
            source="dpkg, systemd, /proc",
            hint="systemctl status chrony; run the role time_sync",
        )
    ]
    for name in OTHER_KEEPERS:
        other = node.unit(name)
        if systemd.state(other) == systemd.RUNNING or (systemd.enabled(other) and not systemd.masked(other)):
            found.append(
                row(
                    "time.daemon",
                    name,
                    FAIL,
                    expected="stopped and disabled",
                    measured=systemd.told(other),
                    state=systemd.state(other),
                    source="systemd",
                    reason="two keepers of one clock pull it apart",
                    hint=f"systemctl mask --now {name}",
                )
            )
    record(found)


@pytest.mark.check("time.config")
def test_the_running_daemon_reads_our_sources_and_no_others(node: Node, record: Record) -> None:
    record([_configuration_row(node)])


def _folders() -> list[str]:
    """The directories that chronyd's configuration leads through."""
    return [str(Path(SOURCE_DIRECTORY).parent), SOURCE_DIRECTORY]


def _links_and_strangers(node: Node, path: str) -> list[str]:
    """Where a link leads others may write, and chronyd's unit may not look; an empty stranger is filled tomorrow."""
    sources = node.files(f"{SOURCE_DIRECTORY}/*.sources")
    seen = {
        **node.files(path),
        **sources,
        **{name: one for folder in _folders() for name, one in node.files(folder).items()},
    }
    troubles = [f"{name} is a link to {one['link']}" for name, one in sorted(seen.items()) if "link" in one]
    return [*troubles, *(f"{name} is not ours" for name in sorted(sources) if name != OUR_SOURCES)]


def _configuration_row(node: Node) -> Row:
    """What the daemon has loaded cannot be asked, so: only our directives, and no file newer than the daemon."""
    path = next((path for path in CONFIGURATIONS if node.file(path)), None)
    expected = f"sources from {SOURCE_DIRECTORY} only"
    hint = "run the role time_sync; it writes the whole file and restarts the daemon"
    if path is None:
        return row(
            "time.config", "chronyd", FAIL, expected=expected, reason=f"none of {', '.join(CONFIGURATIONS)}", hint=hint
        )
    file = node.file(path) or {}
    troubles = [*_foreign_directives(file["content"]), *_links_and_strangers(node, path)]
    listed = {canonical(name) for one in node.files(f"{SOURCE_DIRECTORY}/*.sources").values() for name in _servers(one)}
    wanted = wanted_sources(node)
    if listed != set(wanted):
        troubles.append(
            f"{SOURCE_DIRECTORY} lists {', '.join(sorted(listed)) or 'nothing'}, "
            f"the inventory {', '.join(sorted(wanted))}"
        )
    later: list[str] = []
    processes = node.processes("chronyd")
    if not processes:
        troubles.append("no chronyd runs that could have read it")
    for process in processes:
        named = _option(process["argv"], "-f")
        if named not in (None, path):
            troubles.append(f"process {process['pid']} was started with -f {named}")
        # Process start times are counted in ticks of 10 ms and rounded through the uptime: a second is enough.
        if file["mtime"] > process["started"] + 1:
            later.append(f"{path} was written {file['mtime'] - process['started']:.0f} s after chronyd started")
    if later and not troubles:
        # So is a file after an edit that changed no directive, or one that chronyd takes over while it runs, was put
        # right; what it may have been told in between cannot be asked.
        return row(
            "time.config", "chronyd", PASS, severity="warning", state="newer", expected=expected, source=path,
            measured=f"{len(listed)} sources", reason=f"{later[0]}: it need not have read it",
            hint="with no job running: systemctl restart chrony",
        )  # fmt: skip
    return judged(
        "time.config",
        "chronyd",
        not troubles,
        expected=expected,
        measured=f"{len(listed)} sources",
        source=path,
        reason="; ".join(dict.fromkeys(troubles)) or None,
        hint=hint,
    )


def _foreign_directives(text: str) -> list[str]:
    """Directives that bring in sources from elsewhere than our directory."""
    troubles, ours = [], False
    for line in text.splitlines():
        words = line.split()
        if not words or words[0][0] in "#!;%":
            continue
        name = words[0].lower()
        ours = ours or (name == "sourcedir" and words[1:2] == [SOURCE_DIRECTORY])
        if name in ("server", "pool", "peer", "refclock", "include", "confdir", "initstepslew") or (
            name == "sourcedir" and words[1:2] != [SOURCE_DIRECTORY]
        ):
            troubles.append(f"it says `{line.strip()}`")
        if name == "makestep" and words[2:3] and words[2].startswith("-"):
            troubles.append(f"it says `{line.strip()}`: the clock may be stepped under running jobs")
    return troubles if ours else [*troubles, f"it does not read {SOURCE_DIRECTORY}"]


def _servers(file: dict[str, Any]) -> list[str]:
    """The sources that a .sources file names."""
    lines = [line.split() for line in str(file.get("content", "")).splitlines()]
    return [words[1] for words in lines if len(words) > 1 and words[0] in ("server", "pool", "peer")]


def _option(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv[:-1] else None


@pytest.mark.check("time.synchronised")
def test_the_clock_follows_a_source_outside_itself(node: Node, record: Record) -> None:
    try:
        tracking, sources = tracking_of(node), sources_of(node)
    except UnreadableError as trouble:
        down = not node.processes("chronyd")
        record(
            [
                row(
                    "time.synchronised",
                    node.name,
                    FAIL if down else UNKNOWN,
                    expected="synchronised",
                    state="down" if down else "unknown",
                    source="chronyc tracking",
                    reason=str(trouble),
                    hint="systemctl status chrony; journalctl -u chrony",
                )
            ]
        )
        return
    why = why_not_followed(tracking, sources, node.evidence["now"])
    if why is None and is_relay(node):
        upstreams = upstreams_of(node)
        answering = sum(1 for source in sources if source.reach and canonical(source.name) in upstreams)
        if answering < min(UPSTREAMS_ANSWERING, len(upstreams)):
            why = f"only {answering} of {len(upstreams)} upstreams answer: one of them can lie unseen"
    followed = f"{tracking.source or tracking.refid}, stratum {tracking.stratum}"
    record(
        [
            judged(
                "time.synchronised",
                node.name,
                why is None,
                expected="synchronised",
                measured=followed,
                state="synchronised" if why is None else "not_followed",
                source="chronyc tracking",
                reason=why,
                hint="chronyc -N sources; is UDP 123 open to them?",
            )
        ]
    )


@pytest.mark.check("time.sources")
def test_the_sources_are_exactly_those_of_the_inventory(node: Node, record: Record) -> None:
    """C27: a pool that the distribution left behind is as wrong as a relay that is missing."""
    wanted = wanted_sources(node)
    servers = {canonical(source.name): source for source in sources_of(node) if source.mode != "#"}
    usable = any(source.reach and source.state in "*+" for source in servers.values())
    elsewhere = other_sites_of(node)
    found = [
        _elsewhere_row(source) if name in elsewhere else _source_row(source, name in wanted, usable)
        for name, source in servers.items()
    ]
    found += [
        row(
            "time.sources",
            given,
            FAIL,
            expected="configured",
            measured="absent",
            state="missing",
            source="chronyc sources",
            reason="the daemon does not have it",
            hint="chronyc reload sources, or run time_sync",
        )
        for name, given in wanted.items()
        if name not in servers
    ]
    found += [
        row(
            "time.sources",
            source.name,
            NOT_JUDGED,
            state="refclock",
            source="chronyc sources",
            reason="a reference clock, which the inventory cannot name yet",
        )
        for source in sources_of(node)
        if source.mode == "#"
    ]
    record(found)


def _elsewhere_row(source: Source) -> Row:
    """Another site's relay: chronyd shows it as unusable, as it was told. What it measures is judged by time.skew."""
    state = "noselect" if source.reach else "silent"
    return row("time.sources", source.name, PASS, expected="looked at", measured=state, state=state,
               source="chronyc sources", severity=None if source.reach else "warning",
               reason=None if source.reach else "the other site cannot be compared")  # fmt: skip


def _source_row(source: Source, wanted: bool, usable: bool) -> Row:
    word = {"*": "selected", "+": "combined", "-": "not combined", "?": "unusable", "x": "outvoted", "~": "unsteady"}
    state = word.get(source.state, source.state) if source.reach else "silent"
    fields: dict[str, Any] = {"measured": state, "state": state.replace(" ", "_"), "source": "chronyc sources"}
    if not wanted:
        return row(
            "time.sources",
            source.name,
            FAIL,
            expected="absent",
            reason="the inventory does not name this source",
            hint="run the role time_sync; look for `chronyc add`, DHCP hooks, other .sources files",
            **fields,
        )
    if state in ("silent", "unusable", "outvoted"):
        # One silent or lying upstream among several is what several are for.
        return row(
            "time.sources",
            source.name,
            PASS if usable else FAIL,
            expected="answering",
            severity="warning" if usable else "critical",
            reason="others are usable" if usable else "and no other source is usable",
            hint="is UDP 123 to it open, and does its server run?",
            **fields,
        )
    return row("time.sources", source.name, PASS, expected="answering", **fields)


@pytest.mark.check("time.offset")
def test_the_clock_is_within_its_alarm(node: Node, record: Record) -> None:
    """|offset| + root dispersion + root delay / 2, the most by which the clock can be wrong."""
    alarm_ms = float(node.setting("time_sync_alarm_ms"))
    warn_ms = float(node.setting_or("time_sync_warn_ms", 0)) or round(alarm_ms / 3, 3)
    tracking = tracking_of(node)
    why = why_not_followed(tracking, sources_of(node), node.evidence["now"])
    fields: dict[str, Any] = {"expected": alarm_ms, "unit": "ms", "source": "chronyc tracking"}
    if why is not None:
        # Its offset reads zero: from nobody there is no distance.
        record([row("time.offset", node.name, UNKNOWN, reason=f"the clock {why}", **fields)])
        return
    bound_ms = tracking.bound_s * 1000
    warned = warn_ms < bound_ms <= alarm_ms
    record(
        [
            judged(
                "time.offset",
                node.name,
                bound_ms <= alarm_ms,
                measured=round(bound_ms, 3),
                severity="warning" if warned else None,
                state="warning" if warned else None,
                reason=f"above the warning level of {warn_ms} ms" if warned else None,
                hint="chronyc tracking; chronyc sourcestats",
                **fields,
            )
        ]
    )


@pytest.mark.check("time.serving")
@pytest.mark.groups("relays")
def test_a_relay_serves_its_networks_and_nobody_else(node: Node, record: Record) -> None:
    """C35: asked of the running daemon, which `chronyc allow` changes without a trace in any file."""
    found = []
    for address, wanted in _probes(node).items():
        answer = node.section("commands").get(f"chronyc accheck {address}", {})
        said = str(answer.get("out") or answer.get("error") or answer.get("err") or "nothing").strip()
        known = {"Access allowed": True, "Access denied": False}
        served = next((value for text, value in known.items() if text in said), None)
        word = {True: "served", False: "refused"}
        fields = {"expected": word[wanted], "source": "chronyc accheck", "hint": "run the role time_sync"}
        if served is None:
            found.append(row("time.serving", address, UNKNOWN, reason=f"chronyc said {said!r}", **fields))
            continue
        found.append(judged("time.serving", address, served == wanted, measured=word[served],
                            state=word[served], **fields))  # fmt: skip
    record(found)


class Reading(NamedTuple):
    """A clock's distance from NTP time as its own daemon sees it, ms; `uncertain` either way."""

    offset: float  # + = ahead
    uncertain: float


def reading_of(node: Node) -> Reading:
    tracking = tracking_of(node)
    why = why_not_followed(tracking, sources_of(node), node.evidence["now"])
    if why is not None:
        raise UnreadableError(f"the clock {why}")
    uncertain_s = tracking.root_dispersion_s + tracking.root_delay_s / 2
    return Reading(-tracking.behind_s * 1000, uncertain_s * 1000)


@pytest.mark.check("time.skew")
def test_the_clocks_of_a_site_agree(node: Node, rack_nodes: dict[str, Node], record: Record) -> None:
    """The worst partner of this host among those of its site in this run, and for a relay every other site."""
    found = _site_skew(node, [other for other in rack_nodes.values() if other is not node])
    found += [_between_sites(node, address, site) for address, site in other_sites_of(node).items()]
    record(found)


def _site_skew(node: Node, others: list[Node]) -> list[Row]:
    alarm_ms = float(node.setting("time_sync_alarm_ms"))
    fields: dict[str, Any] = {"expected": alarm_ms, "unit": "ms", "source": "chronyc tracking of both"}
    mine, pairs = reading_of(node), []
    for other in others:
        if other.variables.get("rack_site") != node.variables.get("rack_site"):
            continue
        try:
            theirs = reading_of(other)
        except UnreadableError:
            continue  # that host's own finding
        apart = abs(mine.offset - theirs.offset)
        pairs.append((apart + mine.uncertain + theirs.uncertain, apart, other.name))
    if not pairs:
        reason = "no other host of this site with a readable clock is in this run"
        return [row("time.skew", node.name, NOT_JUDGED, state="alone", reason=reason, **fields)]
    bound, apart, name = max(pairs)
    reason = f"{apart:.3f} ms apart, {bound - apart:.3f} ms uncertain"
    good = bound <= alarm_ms
    return [
        judged(
            "time.skew",
            f"{node.name} and {name}",
            good,
            measured=round(bound, 3),
            state="together" if good else "apart",
            reason=reason,
            hint="compare chronyc tracking on both; which of them is far from the others?",
            **fields,
        )
    ]


def _between_sites(node: Node, address: str, site: str) -> Row:
    limit = float(node.setting("time_sync_site_skew_alarm_ms"))
    subject = f"{node.variables.get('rack_site')} and {site}"
    fields: dict[str, Any] = {"expected": limit, "unit": "ms", "source": "chronyc sources"}
    hint = f"is UDP 123 to {address} open, and does that relay serve this one?"
    source = next((one for one in sources_of(node) if canonical(one.name) == address), None)
    if source is None or not source.reach:
        return row(
            "time.skew", subject, UNKNOWN, state="silent", reason=f"{address} does not answer", hint=hint, **fields
        )
    apart, uncertain = abs(source.offset_s) * 1000, source.margin_s * 1000
    fields.update(measured=round(apart + uncertain, 3), reason=f"{apart:.3f} ms apart, {uncertain:.3f} ms uncertain")
    if apart - uncertain > limit:
        return row(
            "time.skew", subject, FAIL, state="apart", hint="which site's upstreams lie? chronyc sources", **fields
        )
    if apart + uncertain > limit:
        return row("time.skew", subject, UNKNOWN, state="uncertain", **fields)
    return row("time.skew", subject, PASS, state="together", **fields)
