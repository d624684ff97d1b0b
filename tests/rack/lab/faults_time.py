"""Faults of time: upstreams that lie, announce leap seconds or fall silent, clocks of hosts, daemons beside ours."""

from __future__ import annotations

import time

from lab import hosts
from lab.say import RackError, number
from lab.topology import Host, Rack

BENDS = "/var/lib/upstream-clocks"
SETTLE_S = 0.6
"""The clocks look for a changed bend five times a second, and a chronyd starts in a tenth."""
LEAP_BITS = {"insert": 1, "delete": 2, "lost": 3}
"""RFC 5905: the last is "clock not synchronised"."""
SMEAR = "-0.25 -11.574074"
"""A quarter of the way through a linear smear of an inserted second over 24 h: offset (s) and rate (ppm)."""
SKEW = "/run/systemd/system/chrony.service.d/60-demo-rack-skew.conf"
SKEW_FILE = "/run/demo-rack-skew"
DAEMONS = {"openntpd": "openntpd", "ntpsec": "ntpsec", "timesyncd": "systemd-timesyncd"}
"""Word, Debian package, which is its unit's name as well."""
INSTALL = (
    # A name server that is silent for half a minute costs squid a minute: it remembers that it has no answer.
    "for pause in 70 70 0; do apt-get -q update"
    " && apt-get install -qy --no-install-recommends --download-only {0} && break; sleep $pause; done;"
    " DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends {0}"
    " && systemctl unmask {0} && systemctl enable {0} && {{ systemctl restart {0} || true; }}"
)


def clock(rack: Rack, words: list[str]) -> None:
    """Bend one upstream, or all of them."""
    names, offset = _upstreams(rack, words[0]), words[1]
    text = "silent" if offset == "silent" else f"{number(offset, 'an offset in seconds')}"
    if len(words) > 2:
        text += f" {number(words[2], 'a rate in ppm')} {time.time()}"
    for outside, clocks in names.items():
        _write(rack, outside, {f"{BENDS}/{name}": text for name in clocks})


def leap(rack: Rack, words: list[str]) -> None:
    """The leap bits of an upstream's answers; `smear` has none of them, and a clock on its way through the second."""
    names, what = _upstreams(rack, words[0]), words[1]
    if what not in (*LEAP_BITS, "smear", "none"):
        raise RackError("an upstream's leap is insert, delete, lost, smear or none", f"given: {what!r}")
    for outside, clocks in names.items():
        if what in LEAP_BITS:
            _write(rack, outside, {f"{BENDS}/{name}.leap": str(LEAP_BITS[what]) for name in clocks})
            continue
        _remove(rack, outside, [f"{BENDS}/{name}.leap" for name in clocks])
        if what == "smear":
            _write(rack, outside, {f"{BENDS}/{name}": f"{SMEAR} {time.time()}" for name in clocks})
        else:  # a smear is a bend of ours; another bend is somebody else's and stays
            script = 'for f; do ! grep -q "^$0 " "$f" 2>/dev/null || rm "$f"; done'
            hosts.execute(rack, outside, "sh", "-c", script, SMEAR, *(f"{BENDS}/{name}" for name in clocks))
            time.sleep(SETTLE_S)


def bend(rack: Rack, words: list[str]) -> None:
    """One relay sees every upstream shifted, or hears none of them, also after a boot; all others are not touched."""
    relay, offset = rack.host(words[0]), words[1]
    outside = next((host for host in rack.hosts.values() if host.upstream_clocks), None)
    shared = [n for n in relay.networks if outside is not None and n in outside.networks]
    if outside is None or not shared or relay is outside:
        raise RackError(f"{relay.name} asks no upstream", "it is no relay")
    path = f"{BENDS}/for-{relay.networks[shared[0]]}"
    if offset == "none":
        _remove(rack, outside.name, [path])
    else:
        text = offset if offset == "silent" else f"{number(offset, 'an offset in seconds')}"
        _write(rack, outside.name, {path: text})


def skew(rack: Rack, words: list[str]) -> None:
    """A host whose own clock is apart from all others: its chronyd runs under the bendable clock."""
    host, offset = rack.host(words[0]), words[1]
    if host.upstream_clocks:
        raise RackError(f"{host.name} has no chronyd of its own", next_step="bend its clocks: ./rack fault clock")
    if offset == "none":
        script = f"rm -f {SKEW} {SKEW_FILE}"
    else:
        lines = "[Service]\\nEnvironment=LD_PRELOAD=/usr/lib/demo-rack/libbentclock.so BENTCLOCK_FILE=" + SKEW_FILE
        script = (
            f"mkdir -p {SKEW.rsplit('/', 1)[0]} && printf '{lines}\\n' >{SKEW}"
            f" && echo {number(offset, 'an offset in seconds')} >{SKEW_FILE}"
        )
    hosts.execute(rack, host.name, "sh", "-ec", f"{script}; systemctl daemon-reload; systemctl restart chrony")


def rogue(rack: Rack, words: list[str]) -> None:
    """Known to the running daemon only: no file tells of it, a restart forgets it."""
    host, address = words
    answer = hosts.execute(rack, host, "chronyc", "add", "server", address, "iburst", "minpoll", "2", "maxpoll", "4")
    if "200 OK" not in answer:
        raise RackError(f"chronyd on {host} refused the server", answer)


def daemon(rack: Rack, words: list[str]) -> None:
    """Another time service gets installed after us, by apt, through the relay. Debian's conflict with chrony and go."""
    host, which = words
    if which not in DAEMONS:
        raise RackError(f"no time service is called {which!r}", "known: " + ", ".join(DAEMONS))
    hosts.execute(rack, host, "sh", "-c", INSTALL.format(DAEMONS[which]))


def heal_host(host: Host) -> str:
    """Shell words: upstreams tell the true time to everybody again; a host with a skew loses it."""
    if host.upstream_clocks:
        return f"rm -f {BENDS}/*"
    return f"if rm {SKEW} 2>/dev/null; then rm -f {SKEW_FILE}; systemctl daemon-reload; systemctl restart chrony; fi"


def _upstreams(rack: Rack, clock: str) -> dict[str, list[str]]:
    """host -> names of the upstreams there that `clock` means; `all` means every one."""
    found = {
        host.name: [name for name in host.upstream_clocks if clock in (name, "all")] for host in rack.hosts.values()
    }
    found = {host: names for host, names in found.items() if names}
    if not found:
        known = ", ".join(["all", *(name for host in rack.hosts.values() for name in host.upstream_clocks)])
        raise RackError(f"no upstream is called {clock!r}", f"known: {known}")
    return found


def _write(rack: Rack, host: str, files: dict[str, str]) -> None:
    """Each file whole or not at all: the clocks look five times a second."""
    words = [word for path, text in files.items() for word in (path, text)]
    script = 'while [ $# -gt 0 ]; do echo "$2" >"$1.new" && mv "$1.new" "$1"; shift 2; done'
    hosts.execute(rack, host, "sh", "-ec", script, "sh", *words)
    time.sleep(SETTLE_S)


def _remove(rack: Rack, host: str, paths: list[str]) -> None:
    hosts.execute(rack, host, "rm", "-f", *paths)
    time.sleep(SETTLE_S)
