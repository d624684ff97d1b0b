# SPDX-License-Identifier: BSD-2-Clause
"""chronyd's configuration from one data structure: the files, and how a running daemon takes them over.

Pure: text in, text out. What a release of chronyd knows decides what is written (``FEATURES``), and what
differs between an old file and a new one decides whether the daemon must start anew (``action_for``).
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Mapping, NamedTuple, Sequence

from .chronyc import canonical
from .errors import InputError

RELAY, CLIENT = "relay", "client"
VERSION = 2  # of the note

# chrony 4.0 has sourcedir, `reload sources`, `sources -a` and -p; older releases are refused (NEWS of chrony).
OLDEST = (4, 0)
# First release that knows an option of a directive (NEWS of chrony).
FEATURES = {"local activate": (4, 6)}
# Directives that a running daemon takes by chronyc. All others are read at its start only; ratelimit too, for which
# chronyc has no command (client.c, up to 4.8).
RUNTIME = ("allow", "deny", "local")
# Reasons for these figures: notes beside each line that is written, and docs/time.md.
ORPHAN_STRATUM = 10
KEY_TYPES = ("AES128", "AES256", "SHA256", "SHA384", "SHA512")
CIPHER_BYTES = {"AES128": 16, "AES256": 32}
SECRET_FORM = re.compile(r"HEX:(?:[0-9A-Fa-f]{2})+|(?!HEX:)(?:ASCII:)?[!-~]+")
# A name, or an address with an interface (fe80::1%eth0).
NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:%_-]*|::[0-9A-Fa-f:.]*")


class Source(NamedTuple):
    """A server that is asked."""

    address: str
    operator: str | None = None  # who runs it; two addresses of one operator are one vote
    nts: bool = False
    offset_s: float = 0.0  # a known asymmetry of the way to it, subtracted by chronyd


class Config(NamedTuple):
    """Everything that decides the files. Units in names."""

    mode: str
    site: str
    sources: tuple[Source, ...]
    peers: tuple[str, ...] = ()
    other_sites: Mapping[str, str] = {}
    client_networks: tuple[str, ...] = ()
    keys: tuple[tuple[int, str, str], ...] = ()  # id, type, secret
    key_id: int | None = None
    upstream_poll: tuple[int, int] = (6, 8)
    relay_poll: tuple[int, int] = (4, 4)
    upstream_max_delay_s: float = 0.2
    max_distance_s: float = 0.5
    max_clock_error_ppm: float = 5.0
    max_slew_ppm: float = 500.0
    orphan_distance_s: float = 0.1
    ratelimit: bool = True
    hwtimestamp: bool = True
    alarm_ms: float = 30.0
    warn_ms: float = 10.0
    site_skew_alarm_ms: float = 100.0
    min_upstreams: int = 3

    @property
    def relay(self) -> bool:
        return self.mode == RELAY


class Paths(NamedTuple):
    """Where a family of distributions keeps what chronyd reads."""

    unit: str = "chrony"
    package: str = "chrony"
    conf: str = "/etc/chrony/chrony.conf"
    sourcedir: str = "/etc/chrony/steadyrack.d"
    keyfile: str = "/etc/chrony/steadyrack.keys"
    driftfile: str = "/var/lib/chrony/chrony.drift"
    dumpdir: str = "/run/chrony"
    logdir: str = "/var/log/chrony"
    owner: str = "root"  # of the key file
    group: str = "_chrony"
    options_file: str = "/etc/default/chrony"
    options_variable: str = "DAEMON_OPTS"
    note: str = "/etc/steadyrack/time_sync.json"
    units: str = "/usr/lib/systemd/system"
    drop_ins: str = "/etc/systemd/system"
    root: str = "/"  # where /proc, /run and /sys are read


# --- reading -------------------------------------------------------------------------------------


def config_of(values: Mapping[str, Any]) -> Config:
    """The module's parameter as a Config; contradictions are InputError, before anything is read or changed."""
    given = {key: value for key, value in values.items() if value is not None and key in Config._fields}
    given["sources"] = tuple(
        Source(entry["address"], entry.get("operator"), bool(entry.get("nts")), float(entry.get("offset_s") or 0.0))
        for entry in values.get("sources") or []
    )
    given["peers"] = tuple(values.get("peers") or ())
    given["client_networks"] = tuple(values.get("client_networks") or ())
    given["other_sites"] = dict(values.get("other_sites") or {})
    given["keys"] = tuple((int(key["id"]), str(key["type"]), str(key["key"])) for key in values.get("keys") or [])
    for name in ("upstream_poll", "relay_poll"):
        if name in given:
            if len(given[name]) != 2:
                raise InputError(name, list(given[name]), "two numbers, the shortest and the longest", CORRECT)
            given[name] = (int(given[name][0]), int(given[name][1]))
    config = Config(**given)
    _refuse_contradictions(config)
    return config


CORRECT = "correct the inputs of role time_sync; nothing was changed"


def _refuse_contradictions(config: Config) -> None:
    if not config.sources:
        raise InputError("sources", "none", "at least one server to ask", CORRECT)
    names = [source.address for source in config.sources] + [*config.peers, *config.other_sites]
    keys = [canonical(name) for name in names]
    for name, key in zip(names, keys):
        if keys.count(key) > 1:
            raise InputError(f"source {name}", "named twice", "each server once", CORRECT)
        if not NAME_FORM.fullmatch(name):  # it would be another directive, or a comment
            raise InputError(f"source {name!r}", "not a name or an address", "one of the two", CORRECT)
    for (low, high), what in ((config.upstream_poll, "upstream"), (config.relay_poll, "relay")):
        if low > high:
            wanted = "minpoll at most maxpoll"
            raise InputError(f"{what} polling", f"minpoll {low} above maxpoll {high}", wanted, CORRECT)
    if not 0 < config.warn_ms <= config.alarm_ms:
        wanted = f"above 0 and at most alarm_ms ({config.alarm_ms:g})"
        raise InputError("warn_ms", f"{config.warn_ms:g}", wanted, CORRECT)
    if config.relay and not config.client_networks:
        raise InputError("client_networks", "none", "the networks this relay serves", CORRECT)
    for network in config.client_networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise InputError("client_networks", error, "networks such as 10.1.0.0/24", CORRECT) from None
    _refuse_half_authentication(config)
    _refuse_bad_keys(config)


def _refuse_half_authentication(config: Config) -> None:
    authenticated = [source.nts for source in config.sources]
    if any(authenticated) and not all(authenticated):
        # chronyd trusts the authenticated ones only, requires them, and stands still when they are gone.
        plain = ", ".join(source.address for source in config.sources if not source.nts)
        raise InputError("NTS", f"not on {plain}", "NTS on every upstream or on none", CORRECT)
    if any(authenticated) and config.key_id is not None:
        raise InputError("key_id", f"{config.key_id}, and NTS", "one of the two", CORRECT)


def _refuse_bad_keys(config: Config) -> None:
    """The secret itself appears in no message."""
    ids = [entry[0] for entry in config.keys]
    if len(set(ids)) != len(ids):
        raise InputError("keys", f"ids {ids}", "each id once", CORRECT)
    if config.key_id is not None and config.key_id not in ids:
        raise InputError("key_id", config.key_id, f"one of the keys given ({ids or 'none'})", CORRECT)
    for number, kind, secret in config.keys:
        if kind not in KEY_TYPES:
            raise InputError(f"key {number}", f"type {kind}", "one of " + ", ".join(KEY_TYPES), CORRECT)
        if not 1 <= number < 2**32:
            raise InputError(f"key {number}", "its id", "from 1 to 4294967295", CORRECT)
        fault = _secret_fault(kind, secret)
        if fault:  # chronyd would leave out the line with no more than a word in its log
            raise InputError(f"key {number}", fault, "as chrony.keys(5) has it: HEX: and digits", CORRECT)


def _secret_fault(kind: str, secret: str) -> str | None:
    if not SECRET_FORM.fullmatch(secret):
        return "not one word, or an odd or wrong digit after HEX:"
    length = (len(secret) - 4) // 2 if secret.startswith("HEX:") else len(secret.replace("ASCII:", "", 1))
    wanted = CIPHER_BYTES.get(kind, length)
    return None if length == wanted else f"{length} bytes, and a key of {kind} has {wanted}"


def version_of(text: str) -> tuple[int, int]:
    """(major, minor) of ``chronyd --version``: ``chronyd (chrony) version 4.6.1 (+CMDMON ...)``."""
    words = text.split()
    try:
        number = words[words.index("version") + 1].split("-")[0].split(".")
        version = (int(number[0]), int(number[1]))
    except (ValueError, IndexError):
        raise InputError("chronyd --version", text.strip()[:200], "chronyd (chrony) version N.N", "run it") from None
    if version < OLDEST:
        wanted = "4.0 or later, which reads sources from a directory of their own"
        raise InputError("chronyd", "version {}.{}".format(*version), wanted, "upgrade the package chrony")
    return version


def knows(version: tuple[int, int] | None, feature: str) -> bool:
    """Whether a release has a feature; of an unknown one nothing is expected."""
    return version is not None and version >= FEATURES[feature]


# --- writing -------------------------------------------------------------------------------------

# A source that has died is left only when the oldest sample of another is newer than its last: with chronyd's own 64
# samples that took a node more than four minutes here, with 8 it is the eight polls until the source counts as silent.
NODE_SAMPLES = "maxsamples 8"
HEAD = "# Written by steadyrack, role time_sync, mode {}. The whole file: a change made here is undone by the next run."


def sources_text(config: Config) -> str:
    """The one .sources file. Every server by iburst: the first answer takes seconds, not minutes."""
    lines = [HEAD.format(config.mode)]
    lines += [f"server {name} {options}" for name, options in source_options(config).items()]
    return "\n".join(lines) + "\n"


def source_options(config: Config) -> dict[str, str]:
    """Server -> the options behind it, in the file and in ``chronyc add server``."""
    outside = "iburst minpoll {} maxpoll {}".format(*config.upstream_poll)
    inside = "iburst minpoll {} maxpoll {} xleave".format(*config.relay_poll)
    if not config.relay:
        key = "" if config.key_id is None else f" key {config.key_id}"
        return {source.address: f"{inside} {NODE_SAMPLES}{key}{_tail(source)}" for source in config.sources}
    delay = f" maxdelay {config.upstream_max_delay_s:g}"
    found = {source.address: outside + delay + _tail(source) for source in config.sources}
    found.update(dict.fromkeys(config.peers, inside))
    # Looked at, never followed: how far the sites are apart.
    found.update(dict.fromkeys(config.other_sites, outside + " noselect"))
    return found


def _tail(source: Source) -> str:
    return (" nts" if source.nts else "") + (f" offset {source.offset_s:.9g}" if source.offset_s else "")


def local_options(config: Config) -> str | None:
    """What orphan mode is switched on with, None for a host without it.

    ``distance``: how uncertain the clock must have become first. Two relays poll each other, so that one of
    them takes the lead and the site stays together.
    """
    if not config.relay or config.orphan_distance_s <= 0:
        return None
    return f"stratum {ORPHAN_STRATUM} orphan distance {config.orphan_distance_s:g}"


def conf_text(config: Config, paths: Paths, version: tuple[int, int] | None, interfaces: Sequence[str] = ()) -> str:
    """chrony.conf. ``interfaces``: network interfaces whose hardware stamps packets."""
    lines = [
        HEAD.format(config.mode),
        "",
        "# The sources stand in one directory of our own, so that `chronyc reload sources` can change them without a",
        "# restart. No other directory is read: neither the distribution's pool nor DHCP adds a source.",
        f"sourcedir {paths.sourcedir}",
        "",
        *(_relay_lines(config, version) if config.relay else _client_lines()),
        "",
        "# How fast a clock without a source is assumed to drift, ppm, so that its stated error grows honestly.",
        f"maxclockerror {config.max_clock_error_ppm:g}",
        "# Ceiling for bending the clock, ppm: the packaged 83333 would bend it by 8 % during a correction.",
        f"maxslewrate {config.max_slew_ppm:g}",
        "# A leap second is bent in as well: the kernel would step the clock under running jobs.",
        "leapsecmode slew",
        "# A jump of this many seconds goes to the log.",
        f"logchange {'0.01' if config.relay else '0.005'}",
        "# Copies the time to the hardware clock, and tells the kernel that it is synchronised.",
        "rtcsync",
        f"driftfile {paths.driftfile}",
        "# Samples are kept over a restart (with -r), so that one does not disturb whoever follows.",
        f"dumpdir {paths.dumpdir}",
        f"logdir {paths.logdir}",
        "log tracking measurements statistics",
    ]
    if config.keys:
        lines += [f"keyfile {paths.keyfile}"]
    if interfaces:
        lines += ["# Hardware that stamps packets itself.", *(f"hwtimestamp {name}" for name in interfaces)]
    return "\n".join(lines) + "\n"


def _relay_lines(config: Config, version: tuple[int, int] | None) -> list[str]:
    lines = ["# Whom this relay serves. Without an allow line the port stays closed."]
    lines += [f"allow {network}" for network in config.client_networks]
    local = local_options(config)
    if local and knows(version, "local activate"):
        lines += [
            "# Cut off from outside the site agrees with itself, at a stratum that says so; never before this clock",
            "# was set once (activate).",
            f"local {local} activate {config.orphan_distance_s:g}",
        ]
    elif local:
        lines += [
            "# No `local` line here: this release would serve a clock that was never set, within seconds of a start.",
            "# steadyrack-time-settle.service switches it on once the clock has followed a source:",
            f"#   chronyc local {local}",
        ]
    if config.peers and config.sources[0].nts:
        lines += [
            "# The relays of the site are asked without NTS. Otherwise chronyd stands still when only they are left.",
            "authselectmode ignore",
        ]
    if config.ratelimit:
        lines += [
            "# A client that asks more often than once in two seconds is answered now and then only.",
            "ratelimit interval 1 burst 16 leak 2",
        ]
    return [
        *lines,
        "# An upstream further away than this may be that wrong.",
        f"maxdistance {config.max_distance_s:g}",
        "# May step in its first three updates after the boot, before anybody relies on it; later it only slews.",
        "makestep 1 3",
    ]


def _client_lines() -> list[str]:
    return [
        "# A node serves nobody.",
        "port 0",
        "# May step in its first three updates after the boot, before a job runs; later it only slews",
        "# (steadyrack-time-settle.service closes the window, restarts included).",
        "makestep 0.1 3",
    ]


def keys_text(config: Config) -> str:
    """The key file: id, type, secret."""
    return HEAD.format(config.mode) + "\n" + "".join(f"{number} {kind} {key}\n" for number, kind, key in config.keys)


def note_text(
    config: Config,
    paths: Paths,
    version: tuple[int, int] | None,
    rivals: Sequence[str],
    files: Mapping[str, str] | None = None,
) -> str:
    """/etc/steadyrack/time_sync.json: what the node's own checks hold the clock against. No secrets.

    ``files``: path -> sha256 of what is written for chronyd.
    """
    note = {
        "version": VERSION,
        "mode": config.mode,
        "site": config.site,
        "unit": paths.unit,
        "sources": [source.address for source in config.sources],
        "operators": {source.address: source.operator for source in config.sources if source.operator},
        "peers": list(config.peers),
        "other_sites": dict(config.other_sites),
        "alarm_ms": config.alarm_ms,
        "warn_ms": config.warn_ms,
        "site_skew_alarm_ms": config.site_skew_alarm_ms,
        "min_upstreams": config.min_upstreams,
        "rivals": list(rivals),
        "files": dict(files or {}),
        "log_directory": paths.logdir,
        # Only where chronyd cannot be told in its file to wait for its first synchronisation.
        "local_when_synchronised": None if knows(version, "local activate") else local_options(config),
        "options_file": paths.options_file,
        "options_variable": paths.options_variable,
    }
    return json.dumps(note, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# --- what a running daemon does about it -----------------------------------------------------------


def note_action(before: str | None, after: str) -> str:
    """``reload`` where the settle unit switches orphan mode on and it is to be another one; the file cannot tell."""
    try:
        old = json.loads(before or "{}")
    except ValueError:
        old = {}
    key = "local_when_synchronised"
    if before is None or not isinstance(old, dict) or old.get(key) == json.loads(after)[key]:
        return "none"
    return "reload"


def directives(text: str) -> list[tuple[str, ...]]:
    """Lines that mean something, as words; comments begin with one of ``#!;%`` (chrony.conf manual)."""
    rows = (tuple(line.split()) for line in text.splitlines())
    return sorted(row for row in rows if row and row[0][0] not in "#!;%")


def action_for(before: str | None, after: str) -> str:
    """``restart``, ``reload`` (chronyc can do it) or ``none`` for going from one chrony.conf to another."""
    if before is None:
        return "restart"
    old, new = directives(before), directives(after)
    if old == new:
        return "none"
    fixed = [[row for row in rows if row[0].lower() not in RUNTIME] for rows in (old, new)]
    return "reload" if fixed[0] == fixed[1] else "restart"


def reload_command(config: Config, version: tuple[int, int] | None) -> list[str]:
    """One chronyc for everything that a running daemon takes: whom it serves, orphan mode, its sources."""
    commands = []
    if config.relay:
        # `deny all` empties the table; a packet that comes between the two is a missed poll.
        commands += ["deny all", *(f"allow {network}" for network in config.client_networks)]
        local = local_options(config)
        if local and knows(version, "local activate"):
            commands.append(f"local {local} activate {config.orphan_distance_s:g}")
        elif not local:
            commands.append("local off")
    # The key file is read again before a source asks for a key in it.
    return ["chronyc", "-m", *commands, *(["rekey"] if config.keys else []), "reload sources"]
