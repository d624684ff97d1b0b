"""What a rack of containers consists of, read from tests/rack/racks/<name>.toml and checked before anything is made."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from lab.images import SUITES
from lab.paths import LAB, STATE
from lab.say import RackError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Network:
    name: str
    subnet: ipaddress.IPv4Network
    internal: bool


@dataclass(frozen=True)
class Host:
    name: str
    suite: str
    networks: dict[str, str]
    gpu_profile: str | None = None
    upstream_clocks: dict[str, str] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        return list(self.networks.values())

    @property
    def ssh_address(self) -> str:
        """The address Ansible uses: the last network listed, so that a relay is reached on the rack's side."""
        return self.addresses[-1]


@dataclass(frozen=True)
class Rack:
    short: str
    name: str
    networks: dict[str, Network]
    hosts: dict[str, Host]

    @property
    def state(self) -> Path:
        """Keys, known_hosts, ssh_config, logs and results of this rack."""
        return STATE / self.short

    def container(self, host: str) -> str:
        return f"{self.name}-{host}"

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            raise RackError(f"no host {name!r} in rack {self.short}", "hosts: " + ", ".join(self.hosts))
        return self.hosts[name]


def load(short: str) -> Rack:
    """Read and check tests/rack/racks/<short>.toml."""
    path = LAB / "racks" / f"{short}.toml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.toml")))
        raise RackError(f"no rack is called {short!r}", f"known: {known}")
    return parse(short, tomllib.loads(path.read_text()))


def parse(short: str, data: dict) -> Rack:
    """Build a Rack from the parsed file; every address must lie in its network and be used once."""
    networks = {
        name: Network(name, ipaddress.IPv4Network(row["subnet"]), bool(row.get("internal", False)))
        for name, row in data["networks"].items()
    }
    hosts = {name: Host(name=name, **row) for name, row in data["hosts"].items()}
    seen: dict[str, str] = {}
    for host in hosts.values():
        if not _NAME.fullmatch(host.name):
            raise RackError(f"{host.name!r} is not a host name")
        if host.suite not in SUITES:
            raise RackError(f"{host.name}: no image for {host.suite!r}", "known: " + ", ".join(SUITES))
        own = set(host.addresses) | set(host.upstream_clocks.values())
        for address in own:
            if address in seen:
                raise RackError(f"{host.name} and {seen[address]} share the address {address}")
            seen[address] = host.name
        for network, address in host.networks.items():
            if network not in networks:
                raise RackError(f"{host.name}: no network {network!r}", "known: " + ", ".join(networks))
            if ipaddress.IPv4Address(address) not in networks[network].subnet:
                raise RackError(f"{host.name}: {address} is not in {network} ({networks[network].subnet})")
    return Rack(short=short, name=data["name"], networks=networks, hosts=hosts)
