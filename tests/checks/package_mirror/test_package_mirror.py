"""Packages come through the relays of the site and no other way; a relay's proxy serves its racks and nobody else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from acceptance import packages, systemd
from acceptance.addresses import in_url, networks
from acceptance.nodes import Node
from acceptance.rows import FAIL, Row, judged, row

Record = Callable[[Iterable[Row]], None]
CHECK = "package.relay_only"
SQUID_CONF = "/etc/squid/squid.conf"
DETECT_SCRIPT = "/usr/local/sbin/steadyrack-apt-proxy"


def reads(node: Node) -> dict[str, Any]:
    """What must be read from a node for these checks."""
    if "relays" in node.groups:
        return {
            "units": ["squid.service"],
            "packages": ["squid"],
            "processes": ["squid"],
            "sockets": True,
            "files": {SQUID_CONF: {"content": True}},
        }
    relays = relays_of(node)
    wish: dict[str, Any] = {"commands": {"apt-config": {"argv": ["apt-config", "dump"]}}}
    if len(relays) > 1:
        wish["commands"]["apt proxy"] = {"argv": [DETECT_SCRIPT, "http://mirror.example/debian"]}
    wish["tcp"] = [f"{relay} {node.setting('package_mirror_port')}" for relay in relays]
    return wish


def relays_of(node: Node) -> list[str]:
    return [str(relay) for relay in node.variables.get("package_mirror_relays") or node.site_relays().values()]


def apt_settings(text: str) -> dict[str, str]:
    """`apt-config dump`, which has merged every file as apt does."""
    return dict(re.findall(r'^(\S+) "(.*)";$', text, re.MULTILINE))


@pytest.mark.groups("gpu_nodes")
@pytest.mark.check(CHECK)
def test_apt_goes_through_the_relays_and_no_other_way(node: Node, record: Record) -> None:
    port = node.setting("package_mirror_port")
    relays = relays_of(node)
    proxies = [f"http://{in_url(relay)}:{port}" for relay in relays]
    settings = apt_settings(node.command("apt-config"))
    found = [_scheme_row(node, scheme, settings, proxies) for scheme in ("http", "https")]
    # Acquire::http::Proxy::<host> sends one host past the proxy.
    found += [
        row(
            CHECK,
            name,
            FAIL,
            expected="absent",
            measured=value,
            source="apt-config",
            reason="an exception for one host",
            hint="look in /etc/apt/apt.conf.d; nothing but the relay's proxy belongs there",
        )
        for name, value in settings.items()
        if re.match(r"Acquire::https?::Proxy::", name)
    ]
    answers = node.section("tcp")
    found += [
        judged(
            CHECK,
            proxy,
            answers.get(f"{relay} {port}", "not tried") is None,
            expected="accepts a connection",
            measured=answers.get(f"{relay} {port}", "not tried") or "accepts",
            source="connect",
            hint="on the relay: systemctl status squid; is the port open between the two?",
        )
        for relay, proxy in zip(relays, proxies, strict=True)
    ]
    record(found)


def _scheme_row(node: Node, scheme: str, settings: dict[str, str], proxies: list[str]) -> Row:
    measured = settings.get(f"Acquire::{scheme}::Proxy") or None
    detect = settings.get(f"Acquire::{scheme}::Proxy-Auto-Detect") or settings.get(
        f"Acquire::{scheme}::ProxyAutoDetect"
    )
    source = "apt-config"
    if detect and not measured:
        if detect != DETECT_SCRIPT or len(proxies) < 2:
            return row(
                CHECK,
                scheme,
                FAIL,
                expected=" or ".join(proxies),
                measured=detect,
                source=source,
                reason="the proxy is chosen by a script that is not ours",
                hint="run the role package_mirror",
            )
        measured, source = node.command("apt proxy").strip(), detect
    return judged(
        CHECK,
        scheme,
        measured in proxies,
        expected=" or ".join(proxies),
        measured=measured or "no proxy",
        source=source,
        hint="run the role package_mirror; look in /etc/apt/apt.conf.d",
    )


@pytest.mark.groups("relays")
@pytest.mark.check(CHECK)
def test_the_proxy_serves_the_racks_networks_only(node: Node, record: Record) -> None:
    unit, package = node.unit("squid.service"), node.package("squid")
    running = systemd.state(unit) == systemd.RUNNING and systemd.enabled(unit) and packages.installed(package)
    record(
        [
            judged(
                CHECK,
                "squid",
                running,
                expected="installed, enabled, running",
                state=systemd.state(unit),
                measured=f"package {packages.told(package)}; {systemd.told(unit)}",
                source="dpkg, systemd",
                hint="systemctl status squid; squid -k parse",
            ),
            _listening_row(node),
            _served_row(node),
        ]
    )


def _listening_row(node: Node) -> Row:
    """The one port for clients is open, and squid.conf opens no other."""
    port = node.setting("package_mirror_port")
    listening = any(one["protocol"] == "tcp" and one["port"] == port for one in node.section("sockets"))
    content = (node.file(SQUID_CONF) or {}).get("content", "")
    others = [words for words in re.findall(r"^\s*https?_port\s+(\S+)", content, re.MULTILINE) if words != str(port)]
    return judged(
        CHECK,
        f"port {port}",
        listening and not others,
        expected=f"{port} open",
        measured=("open" if listening else "closed") + (f", also {', '.join(others)}" if others else ""),
        source="/proc/net, squid.conf",
        hint="systemctl status squid; only the role's http_port belongs in squid.conf",
    )


def _served_row(node: Node) -> Row:
    """Who may use the proxy, as squid.conf says it, and that the running squid has read it."""
    wanted = networks(node.variables.get("package_mirror_client_networks") or node.setting("rack_networks"))
    hint = "run the role package_mirror; it writes the whole file and restarts squid"
    file = node.file(SQUID_CONF)
    if file is None:
        return row(CHECK, SQUID_CONF, FAIL, expected=wanted, measured="absent", source=SQUID_CONF, hint=hint)
    served, troubles = served_networks(file["content"])
    for process in node.processes("squid"):
        if file["mtime"] > process["started"] + 1:
            troubles.append(f"it was written after process {process['pid']} started")
    return judged(
        CHECK,
        SQUID_CONF,
        served == wanted and not troubles,
        expected=wanted,
        measured=served,
        source=SQUID_CONF,
        reason="; ".join(troubles) or None,
        hint=hint,
    )


def served_networks(text: str) -> tuple[list[str], list[str]]:
    """The networks that `http_access allow` lets in, and what in the file may let in more than can be seen here."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    sources: dict[str, list[str]] = {}
    for words in lines:
        if words[0] == "acl" and words[2:3] == ["src"]:
            sources.setdefault(words[1], []).extend(words[3:])
    rules = [words[1:] for words in lines if words[0] == "http_access"]
    served, troubles = [], [f"it says `{' '.join(words)}`" for words in lines if words[0] == "include"]
    for rule in rules:
        if rule[0] != "allow" or rule[1:] == ["localhost"]:
            continue
        if len(rule) == 2 and rule[1] in sources:
            served += sources[rule[1]]
        else:
            troubles.append(f"it says `http_access {' '.join(rule)}`")
    if rules[-1:] != [["deny", "all"]]:
        troubles.append("its last http_access is not `deny all`")
    try:
        return networks(served), troubles
    except ValueError as error:
        return served, [*troubles, str(error)]
