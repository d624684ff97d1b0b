"""NTP goes where the inventory says, and nowhere else: read from the kernel's rules, and tried with real packets.

The rules are judged from `nft -j list ruleset` by following each chain of the table as a packet would. The packets
are sent by the host itself: a question to each relay of its site, as a client's (C35: a port that is open in the
wrong place looks well from the relay), and an empty datagram to somebody else, which must be refused and counted.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from acceptance import systemd
from acceptance.nodes import Node, UnreadableError
from acceptance.rows import FAIL, PASS, UNKNOWN, Row, judged, row

pytestmark = pytest.mark.groups("relays", "gpu_nodes")
Record = Callable[[Iterable[Row]], None]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

FAMILY, TABLE, UNIT = "inet", "steadyrack_ntp", "steadyrack-firewall.service"
NTP, NTS, COMMAND = ("udp", 123), ("tcp", 4460), ("udp", 323)
PROTOCOLS = {6: "tcp", 17: "udp"}  # nft lists numbers where /etc/protocols is not installed
WORLD = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
HINT = "nft list table inet steadyrack_ntp; run playbooks/firewall.yml"
ANSWER_S, TRIES = 1.0, 3

# Runs on the host. Arguments: relays, "--", somebody else (or nothing). An NTP question is mode 3, version 4
# (RFC 5905); an answer is mode 4 and comes from the one who was asked.
PROBE = """
import json, socket, subprocess, sys
def counters():
    argv = ["nft", "-j", "list", "counters", "table", "inet", "steadyrack_ntp"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode: return {}
    found = [e["counter"] for e in json.loads(done.stdout)["nftables"] if "counter" in e]
    return {c["name"]: c["packets"] for c in found if c["table"] == "steadyrack_ntp"}
def ask(address, data, wait_s):
    try:
        place = socket.getaddrinfo(address, 123, 0, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)[0]
        with socket.socket(place[0], socket.SOCK_DGRAM) as line:
            line.settimeout(wait_s)
            line.connect(place[4])
            line.send(data)
            answer = line.recv(512)
            return "answered" if len(answer) >= 48 and answer[0] & 7 == 4 else "answered with %d bytes" % len(answer)
    except socket.timeout: return "silent"
    except OSError as error: return "error: " + (error.strerror or str(error))
words = sys.argv[1:]
relays, others = words[:words.index("--")], words[words.index("--") + 1:]
found = {"relays": {}, "other": None}
for relay in relays:
    for _ in range(TRIES):
        found["relays"][relay] = ask(relay, bytes([0x23]) + bytes(47), ANSWER_S)
        if found["relays"][relay] == "answered": break
for other in others:
    before = counters()
    said = ask(other, b"", ANSWER_S)
    found["other"] = {"address": other, "said": said, "before": before, "after": counters()}
print(json.dumps(found))
""".replace("ANSWER_S", str(ANSWER_S)).replace("TRIES", str(TRIES))


def is_relay(node: Node) -> bool:
    return "relays" in node.groups


def relays_of(node: Node) -> list[str]:
    """Whom this host may or should ask: its site's relays, itself left out."""
    named = None
    if not is_relay(node):
        named = node.variables.get("rack_firewall_relays") or node.variables.get("time_sync_relays")
    found = named or [address for name, address in node.site_relays().items() if name != node.name]
    return [str(address).strip("[]") for address in found]


def somebody_else(node: Node) -> list[str]:
    """An address of the node's own network that is no relay: routed, whether anybody is there or not."""
    taken = {*relays_of(node), str(node.variables.get("ansible_host", node.name))}
    for text in node.setting_or("rack_networks", []):
        network = ipaddress.ip_network(text)
        if network.num_addresses > 4:
            last = int(network.broadcast_address)
            return [next(str(network[place - int(network[0])]) for place in range(last - 1, last - 20, -1)
                         if str(network[place - int(network[0])]) not in taken)]  # fmt: skip
    return []


def reads(node: Node) -> dict[str, Any]:
    """What must be read from a host for these checks."""
    other = [] if is_relay(node) else somebody_else(node)
    longest = ANSWER_S * (TRIES * len(relays_of(node)) + 1) + 5
    return {
        "commands": {
            "ntp probe": {
                "argv": ["python3", "-I", "-c", PROBE, *relays_of(node), "--", *other],
                "timeout_s": longest,
            },
            "nft ruleset": {"argv": ["nft", "-j", "list", "ruleset"]},
        },
        "units": [UNIT],
    }


def allowed(node: Node) -> list[Network]:
    """Who may ask a relay; whom a node may ask."""
    texts = relays_of(node)
    if is_relay(node):
        site = node.variables.get("rack_site")
        texts += [*node.setting("rack_networks"), *node.setting_or("rack_bmc_networks", [])]
        texts += [
            str(facts["rack_outside_address"])
            for facts in node.peers.values()
            if "relays" in facts.get("group_names", [])
            and facts.get("rack_site") != site
            and facts.get("rack_outside_address")
        ]
    return [ipaddress.ip_network(str(text).strip("[]")) for text in texts]


# --- following a chain ------------------------------------------------------------------------------


class Chain:
    """One base chain of our table, as the kernel has it."""

    def __init__(self, ruleset: list[dict[str, Any]], hook: str) -> None:
        def ours(entry: dict[str, Any]) -> bool:
            return (entry.get("family"), entry.get("table")) == (FAMILY, TABLE)

        chains = [one["chain"] for one in ruleset if "chain" in one and ours(one["chain"])]
        asleep = [
            table
            for one in ruleset
            if (table := one.get("table")) and (table["family"], table["name"]) == (FAMILY, TABLE)
            if "dormant" in str(table.get("flags", ""))
        ]
        names = [one["name"] for one in chains if one.get("hook") == hook and not asleep]
        self.there = len(names) == 1
        self.rules = [
            one["rule"]["expr"]
            for one in ruleset
            if "rule" in one and ours(one["rule"]) and one["rule"]["chain"] in names
        ]

    def troubles(self, service: tuple[str, int], side: str, good: list[Network]) -> list[str]:
        """Ways past the chain for packets of a service whose address on `side` is not among the good ones."""
        found: list[str] = []
        left = set(WORLD)
        for expressions in self.rules:
            rule = Rule(expressions)
            if not rule.concerns(service):
                continue
            if rule.verdict in ("drop", "reject"):
                if rule.always(service):
                    left -= {world for world in WORLD if rule.networks(side, world) in (None, [world])}
                if not left:
                    return found
            elif rule.verdict is not None and not (rule.loopback or rule.reply) and not rule.within(side, good):
                found.append(f"a rule lets it pass: {json.dumps(expressions)[:300]}")
        return [*found, "no rule stops the rest"]

    def lets_in(self, network: Network, service: tuple[str, int], side: str) -> bool:
        """Whether packets of the whole network are accepted before anything stops them."""
        for expressions in self.rules:
            rule = Rule(expressions)
            if not rule.concerns(service):
                continue
            if rule.verdict == "accept" and rule.always(service):
                found = rule.networks(side, network)
                if found is None or any(network.subnet_of(one) for one in found if one.version == network.version):  # type: ignore[arg-type]
                    return True
            if rule.verdict in ("drop", "reject") and rule.always(service) and rule.networks(side, network) is None:
                return False
        return True


class Rule:
    """One rule: what it asks for, and what it does. What is not understood counts as asking for more."""

    def __init__(self, expressions: list[dict[str, Any]]) -> None:
        self.matches = [one["match"] for one in expressions if "match" in one]
        verdicts = [word for one in expressions for word in one if word in
                    ("accept", "drop", "reject", "return", "jump", "goto", "queue", "vmap")]  # fmt: skip
        self.verdict = verdicts[-1] if verdicts else None
        self.conditional = any("limit" in one for one in expressions)

    def _values(self, key: str) -> Iterator[tuple[str, list[Any]]]:
        for match in self.matches:
            if _key(match["left"]) == key:
                yield match["op"], list(_elements(match["right"]))

    def concerns(self, service: tuple[str, int]) -> bool:
        """False when protocol or port leave the service out for certain."""
        protocol, port = service
        for match in self.matches:
            key, values = _key(match["left"]), list(_elements(match["right"]))
            if match["op"] not in ("==", "in"):
                continue
            if key == "meta l4proto" and protocol not in [PROTOCOLS.get(value, value) for value in values]:
                return False
            if key in ("udp dport", "tcp dport") and key.split()[0] != protocol:
                return False
            if key.endswith(" dport") and not any(_covers(value, port) for value in values):
                return False
        return True

    def always(self, service: tuple[str, int]) -> bool:
        """Nothing but protocol, port and addresses is asked for."""
        simple = ("meta l4proto", "th dport", f"{service[0]} dport", "ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr")
        return not self.conditional and all(
            _key(match["left"]) in simple and match["op"] in ("==", "in") for match in self.matches
        )

    def networks(self, side: str, like: Network) -> list[Network] | None:
        """The addresses asked for on that side, None where none is asked for. Of the other family: []."""
        found: list[Network] | None = None
        for family, version in (("ip", 4), ("ip6", 6)):
            for operator, values in self._values(f"{family} {side}"):
                if version != like.version:
                    return []
                found = (
                    [network for value in values for network in _networks(value)] if operator in ("==", "in") else None
                )
        return found

    def within(self, side: str, good: list[Network]) -> bool:
        """Two networks side by side are one in nft's sets, so the good ones are merged, too."""
        good = [one for world in WORLD for one in _merged(good, world.version)]
        asked = [found for world in WORLD if (found := self.networks(side, world))]
        return bool(asked) and all(
            any(one.version == other.version and one.subnet_of(other) for other in good)  # type: ignore[arg-type]
            for networks in asked
            for one in networks
        )

    @property
    def loopback(self) -> bool:
        keys = ("meta iifname", "meta oifname", "meta iif", "meta oif")
        return any(operator == "==" and values == ["lo"] for key in keys for operator, values in self._values(key))

    @property
    def reply(self) -> bool:
        """NTP mode 4 from port 123: an answer, which asks nothing of this host."""
        raw = [json.dumps(match["left"]) for match in self.matches if match["right"] == 4]
        mode = any('"payload"' in text and '"th"' in text for text in raw)
        return mode and any(values == [123] for _op, values in self._values("udp sport"))


def _key(left: Any) -> str:
    """`udp dport`, `meta l4proto`, `ip saddr`; anything else as its JSON."""
    if isinstance(left, dict) and "payload" in left and "field" in left["payload"]:
        return "{} {}".format(left["payload"]["protocol"], left["payload"]["field"])
    if isinstance(left, dict) and "meta" in left:
        return "meta {}".format(left["meta"]["key"])
    return json.dumps(left)


def _elements(right: Any) -> Iterator[Any]:
    if isinstance(right, dict) and "set" in right:
        yield from (element for one in right["set"] for element in _elements(one))
    elif isinstance(right, list):
        yield from right
    else:
        yield right


def _covers(value: Any, port: int) -> bool:
    if isinstance(value, dict) and "range" in value:
        return int(value["range"][0]) <= port <= int(value["range"][1])
    return value == port or not isinstance(value, int)  # a named set: not known, so it may


def _merged(networks: list[Network], version: int) -> list[Network]:
    return list(ipaddress.collapse_addresses(one for one in networks if one.version == version))  # type: ignore[type-var]


def _networks(value: Any) -> list[Network]:
    try:
        if isinstance(value, dict) and "prefix" in value:
            return [ipaddress.ip_network("{}/{}".format(value["prefix"]["addr"], value["prefix"]["len"]))]
        if isinstance(value, dict) and "range" in value:
            first, last = (ipaddress.ip_address(one) for one in value["range"])
            return list(ipaddress.summarize_address_range(first, last))  # type: ignore[type-var]
        return [ipaddress.ip_network(str(value))]
    except ValueError:
        return list(WORLD)  # a named set: it may hold anything


def ruleset_of(node: Node) -> list[dict[str, Any]]:
    try:
        return list(json.loads(node.command("nft ruleset"))["nftables"])
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableError(f"nft -j list ruleset: {error}") from None


def probe_of(node: Node) -> dict[str, Any]:
    try:
        return dict(json.loads(node.command("ntp probe")))
    except ValueError as error:
        raise UnreadableError(f"the NTP probe: {error}") from None


# --- the checks -------------------------------------------------------------------------------------


@pytest.mark.check("firewall.ntp")
def test_the_rules_leave_no_other_way_for_ntp(node: Node, record: Record) -> None:
    """Followed through the kernel's rules, for both families, NTP and NTS."""
    ruleset, good = ruleset_of(node), allowed(node)
    found = []
    wanted: list[tuple[str, str, list[Network], tuple[tuple[str, int], ...], str]] = [
        ("input", "saddr", good if is_relay(node) else [], (NTP, NTS), "asked by nobody but " + _told(node, good)),
        ("input", "saddr", [], (COMMAND,), "no chronyc from elsewhere"),
    ]
    if not is_relay(node):
        wanted += [
            (hook, "daddr", good, (NTP, NTS), f"asks {_told(node, good)} only") for hook in ("output", "forward")
        ]
    for hook, side, networks, services, expected in wanted:
        chain = Chain(ruleset, hook)
        troubles = [] if chain.there else ["the table has no such chain, or sleeps"]
        for service in services if chain.there else ():
            troubles += [f"{service[0]}/{service[1]}: {text}" for text in chain.troubles(service, side, networks)]
        if hook == "input" and is_relay(node) and chain.there and NTP in services:
            shut = [str(one) for one in good if not chain.lets_in(one, NTP, "saddr")]
            troubles += [f"{', '.join(shut)} may not ask, though the inventory lists it"] if shut else []
        found.append(
            judged(
                "firewall.ntp", f"{hook} {'/'.join(str(port) for _protocol, port in services)}", not troubles,
                expected=expected, measured="; ".join(troubles) or "as expected",
                state="closed" if not troubles else "open", source="nft -j list ruleset",
                reason="; ".join(troubles) or None, hint=HINT,
            )
        )  # fmt: skip
    record(found)


def _told(node: Node, good: list[Network]) -> str:
    if not is_relay(node) and not good:
        return "nobody"
    return ", ".join(str(one.network_address) if one.num_addresses == 1 else str(one) for one in good)


@pytest.mark.check("firewall.ntp")
def test_relays_answer_and_others_cannot_be_asked(node: Node, record: Record) -> None:
    """C35: asked from the client, not on the relay. An empty datagram is counted apart, so that this is no leak."""
    probe = probe_of(node)
    found = [
        judged(
            "firewall.ntp", f"relay {relay}", said == "answered",
            expected="answers", measured=said, state="answers" if said == "answered" else "silent",
            source="an NTP question from this host", reason=None if said == "answered" else f"{relay} {said}",
            hint="on the relay: ss -uln; nft list ruleset; firewall-cmd --list-all-zones or ufw status",
        )
        for relay, said in probe["relays"].items()
    ]  # fmt: skip
    other = probe["other"]
    if other is not None:
        found.append(_other_row(other))
    if not found:
        found.append(
            row("firewall.ntp", "relays", PASS, state="alone", expected="none", measured="the only relay of its site")
        )
    record(found)


def _other_row(other: dict[str, Any]) -> Row:
    subject = f"to {other['address']}"
    counted = other["after"].get("ntp_probe", 0) - other["before"].get("ntp_probe", 0)
    fields: dict[str, Any] = {
        "expected": "refused and counted", "measured": f"{other['said']}; counted {counted}",
        "source": "an empty datagram to port 123", "hint": HINT,
    }  # fmt: skip
    if other["said"] == "error: Network is unreachable":
        return row("firewall.ntp", subject, UNKNOWN, reason="there is no route to it, so nothing was tried", **fields)
    good = other["said"].startswith("error: ") and counted >= 1
    if good:
        return row("firewall.ntp", subject, PASS, state="refused", **{**fields, "hint": None})
    why = (
        "it was not refused"
        if not other["said"].startswith("error: ")
        else "it was refused by somebody else: not counted here"
    )
    return row("firewall.ntp", subject, FAIL, state="open", reason=why, **fields)


@pytest.mark.check("firewall.ntp")
def test_the_table_comes_back_at_boot(node: Node, record: Record) -> None:
    unit = node.unit(UNIT)
    record(
        [
            judged(
                "firewall.ntp", UNIT, systemd.state(unit) == systemd.RUNNING and systemd.enabled(unit),
                expected="enabled, active", measured=systemd.told(unit), state=systemd.state(unit), source="systemd",
                hint=f"systemctl status {UNIT}; run playbooks/firewall.yml",
            )
        ]
    )  # fmt: skip
