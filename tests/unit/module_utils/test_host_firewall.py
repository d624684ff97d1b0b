"""firewalld and ufw: whose zone, what is lacking, what is read back (case C35)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import host_firewall
from ansible.module_utils.steadyrack.errors import NotAppliedError, ToolError
from fake_node import FakeNode

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "firewall"
VERSIONS = ("1.3.3", "2.3.1")
ADDED = """Added user rules (see 'ufw status' for running firewall):
ufw allow 22/tcp
ufw allow from 10.214.1.0/24 to any port 123 proto udp comment 'steadyrack ntp'
ufw allow from fd14::/64 to any port 123 proto udp comment 'steadyrack ntp'
"""


def zones(version: str) -> dict[str, host_firewall.Zone]:
    return host_firewall.parse_zones((FIXTURES / f"firewalld-{version}-zones.txt").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_zones_as_recorded(version: str) -> None:
    found = zones(version)
    assert {"block", "dmz", "drop", "internal", "public", "trusted"} <= set(found)
    assert found["dmz"].sources == ("10.214.7.0/24",)
    assert "ssh" in found["internal"].services
    assert len(found["internal"].interfaces) == 1
    assert [name for name, zone in found.items() if zone.open] == ["trusted"]
    assert found["block"].target == "REJECT"


@pytest.mark.parametrize("version", VERSIONS)
def test_c35_the_zone_is_the_interfaces_not_the_default_one(version: str) -> None:
    found = zones(version)
    (inside,) = found["internal"].interfaces
    devices = {"10.214.1.0/24": inside, "10.214.0.0/24": "uplink", "10.214.7.0/25": inside}

    def chosen(*networks: str) -> list[str]:
        return host_firewall.zones_of(networks, found, "public", devices.__getitem__)

    assert chosen("10.214.1.0/24") == ["internal"]
    assert chosen("10.214.0.0/24") == ["public"], "an interface in no zone is in the default one"
    assert chosen("10.214.7.0/25") == ["dmz", "internal"], "a source's zone comes before the interface's"


def firewalld(node: FakeNode, running: str, stored: str) -> None:
    """firewall-cmd with these listings; --add-service only says yes."""
    (node.root / "running").write_text(running)
    (node.root / "stored").write_text(stored)
    node.program(
        "firewall-cmd",
        f"""#!/bin/sh
printf '["firewall-cmd %s"]\\n' "$*" >> {node.log}
case "$*" in
  --get-default-zone) echo public;;
  --list-all-zones) cat {node.root}/running;;
  "--permanent --list-all-zones") cat {node.root}/stored;;
esac
""",
    )
    node.answers("ip", '[{"dst":"10.214.1.1","dev":"eth1","flags":[]}]')
    node.set_units({"firewalld.service": {"active": "active", "asked": True}})


def test_now_and_for_good_by_firewall_cmd_and_read_back(node: FakeNode) -> None:
    text = (FIXTURES / "firewalld-2.3.1-zones.txt").read_text()
    firewalld(node, text, text)
    lacking = host_firewall.openings(["10.214.1.0/24"], ufw_configuration="/nowhere")
    assert [one.argv[1:] for one in lacking] == [
        ("--zone=internal", "--add-service=ntp"),
        ("--permanent", "--zone=internal", "--add-service=ntp"),
    ]
    with pytest.raises(NotAppliedError, match="still lacks: firewalld: service ntp in zone internal, now"):
        host_firewall.carry_out(lacking, ["10.214.1.0/24"], ufw_configuration="/nowhere")
    opened = text.replace("dhcpv6-client mdns samba-client ssh", "dhcpv6-client mdns ntp samba-client ssh")
    assert opened != text
    firewalld(node, opened, text)
    assert len(host_firewall.openings(["10.214.1.0/24"], ufw_configuration="/nowhere")) == 1
    firewalld(node, opened, opened)
    assert host_firewall.openings(["10.214.1.0/24"], ufw_configuration="/nowhere") == []


def test_no_firewall_runs_here(node: FakeNode) -> None:
    node.set_units({"firewalld.service": {"missing": True}})
    assert host_firewall.openings(["10.214.1.0/24"], ufw_configuration="/nowhere") == []
    assert host_firewall.openings([], ufw_configuration="/nowhere") == []


def test_a_network_without_a_route_is_said(node: FakeNode) -> None:
    node.answers("ip", "", 2, "RTNETLINK answers: Network is unreachable")
    with pytest.raises(ToolError, match="Network is unreachable"):
        host_firewall.device_of("10.9.0.0/24")


@pytest.mark.parametrize(
    ("text", "enabled"), [("ENABLED=yes\n", True), ("# ENABLED=yes\nENABLED=no\n", False), ("", False)]
)
def test_ufw_is_on_when_its_file_says_so(tmp_path: Path, text: str, enabled: bool) -> None:
    path = tmp_path / "ufw.conf"
    path.write_text(text)
    assert host_firewall.ufw_enabled(str(path)) is enabled
    assert host_firewall.ufw_enabled(str(tmp_path / "none")) is False


def test_ufw_one_rule_a_network_and_old_ones_of_ours_go(node: FakeNode) -> None:
    node.answers("ufw", ADDED)
    assert host_firewall.ufw_openings(["10.214.1.0/24", "fd14::/64"]) == []
    lacking = host_firewall.ufw_openings(["10.214.1.0/24", "10.214.9.0/24"])
    assert [" ".join(one.argv) for one in lacking] == [
        "ufw allow from 10.214.9.0/24 to any port 123 proto udp comment steadyrack ntp",
        "ufw --force delete allow from fd14::/64 to any port 123 proto udp",
    ]


def test_a_lone_address_and_a_rule_of_somebody_else(node: FakeNode) -> None:
    node.answers("ufw", "ufw allow from 10.0.0.5 to any port 123 proto udp\n")
    assert host_firewall.ufw_openings(["10.0.0.5/32"]) == []
    assert [one.what for one in host_firewall.ufw_openings(["10.0.0.6/32"])] == [
        "ufw: allow from 10.0.0.6/32 to any port 123 proto udp"
    ], "what has not our comment stays"
