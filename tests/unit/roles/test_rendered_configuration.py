"""What the role package_mirror writes into squid's and apt's configuration, for inputs of every kind.

What is written for chrony comes from its module: tests/unit/module_utils/test_chrony_config.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import destinations
import jinja2
import pytest
import rack_inventory
import yaml

ROLES = Path(__file__).resolve().parents[3] / "roles"


def render(role: str, template: str, **inputs: Any) -> str:
    """A template of a role with its defaults, its own private variable and ``inputs``, as Ansible would render it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROLES / role / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update({**rack_inventory.FilterModule().filters(), **destinations.FilterModule().filters()})
    values = yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())
    values.update(inputs)
    values["__package_mirror_script"] = "/usr/local/sbin/steadyrack-apt-proxy"
    return environment.get_template(template).render(values)


def directives(text: str) -> list[str]:
    """Lines that say something."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "//"))]


# --- package_mirror ------------------------------------------------------------------------------------

SERVER = {"package_mirror_client_networks": ["10.1.0.0/24", "2001:db8:1::/64"]}


def test_the_proxy_denies_all_but_the_rack_in_this_order() -> None:
    lines = directives(render("package_mirror", "squid.conf.j2", **SERVER))
    assert [line for line in lines if line.startswith(("acl rack", "http_access"))] == [
        "acl rack src 10.1.0.0/24",
        "acl rack src 2001:db8:1::/64",
        "http_access deny manager",
        "http_access deny to_localhost",
        "http_access deny !allowed_ports",
        "http_access deny tunnel !tunnel_ports",
        "http_access allow rack",
        "http_access allow localhost",
        "http_access deny all",
    ]
    assert not any(line.startswith("include") for line in lines)


def test_named_mirrors_are_the_only_ones() -> None:
    text = render(
        "package_mirror", "squid.conf.j2", **SERVER, package_mirror_allowed_hosts=["mirror.example", ".x.org"]
    )
    lines = directives(text)
    assert "acl allowed_hosts dstdomain -n mirror.example .x.org" in lines
    assert lines.index("http_access deny !allowed_hosts") < lines.index("http_access allow rack")


def test_a_single_destination_is_let_through_for_the_rack_on_its_port_alone() -> None:
    text = render(
        "package_mirror", "squid.conf.j2", **SERVER, package_mirror_allowed_hosts=["mirror.example"],
        package_mirror_allowed_destinations=["hooks.example.org:8443", "10.213.0.11:8080", "[2001:db8::1]:443"],
    )  # fmt: skip
    lines = directives(text)
    assert {"acl host1 dstdomain -n hooks.example.org", "acl port1 port 8443"} <= set(lines)
    assert {"acl host2 dst 10.213.0.11", "acl host3 dst 2001:db8::1"} <= set(lines)
    allowed = lines.index("http_access allow rack host1 port1")
    assert lines.index("http_access deny to_localhost") < allowed < lines.index("http_access deny !allowed_ports")


@pytest.mark.parametrize(
    "value",
    [
        "hooks.example.org",
        "hooks.example.org:0",
        "hooks.example.org:70000",
        ":443",
        "a b:443",
        "http://a:443",
        "::1:443",
    ],
)
def test_what_is_no_destination_is_refused(value: str) -> None:
    with pytest.raises(rack_inventory.FilterError, match="wanted host:port"):
        render("package_mirror", "squid.conf.j2", **SERVER, package_mirror_allowed_destinations=[value])


def test_a_proxy_for_nobody_is_refused() -> None:
    with pytest.raises(rack_inventory.FilterError, match="package_mirror_client_networks"):
        render("package_mirror", "squid.conf.j2")


@pytest.mark.parametrize(
    ("relay", "url"),
    [
        ("10.1.0.21", "http://10.1.0.21:3128"),
        ("2001:db8::21", "http://[2001:db8::21]:3128"),
        ("[2001:db8::21]", "http://[2001:db8::21]:3128"),
        ("relay-a1.example.com", "http://relay-a1.example.com:3128"),
    ],
)
def test_apt_is_told_the_relay_with_brackets_where_they_belong_c86(relay: str, url: str) -> None:
    """C86."""
    assert directives(render("package_mirror", "apt-proxy.conf.j2", package_mirror_relays=[relay])) == [
        f'Acquire::http::Proxy "{url}";',
        f'Acquire::https::Proxy "{url}";',
    ]


def test_without_a_relay_a_client_is_refused() -> None:
    with pytest.raises(rack_inventory.FilterError, match="package_mirror_relays"):
        render("package_mirror", "apt-proxy.conf.j2")


def test_of_several_relays_the_first_that_answers_is_taken(tmp_path: Path) -> None:
    import socket

    relays = ["127.0.0.2", "127.0.0.3"]
    with socket.create_server(("127.0.0.3", 0)) as second:
        port = second.getsockname()[1]
        inputs = {"package_mirror_relays": relays, "package_mirror_port": port}
        assert "Auto-Detect" in render("package_mirror", "apt-proxy.conf.j2", **inputs)
        script = tmp_path / "script"
        script.write_text(render("package_mirror", "apt-proxy.sh.j2", **inputs))
        assert answer(script) == f"http://127.0.0.3:{port}"
    # Nobody answers: the first is named, for apt's own error.
    assert answer(script) == f"http://127.0.0.2:{port}"


def answer(script: Path) -> str:
    done = subprocess.run(["bash", str(script), "http://mirror.example/"], capture_output=True, text=True, check=True)
    return done.stdout.strip()
