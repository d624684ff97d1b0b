"""A second time service is installed after us, by real apt through the relay: what Debian then does with chrony."""

from __future__ import annotations

import pytest

from lab import faults, hosts

NODE = "gpu-b1"
pytestmark = pytest.mark.usefixtures("built")


@pytest.fixture
def repaired(rack, play):
    yield
    script = "apt-get purge -qy openntpd ntpsec; systemctl disable --now systemd-timesyncd; true"
    hosts.execute(rack, NODE, "sh", "-c", f"DEBIAN_FRONTEND=noninteractive; ({script}) 2>/dev/null")
    run = play("site.yml", "--limit", f"{NODE}:relays")
    assert run.rc == 0, run.failures()


def installed(rack) -> set[str]:
    text = hosts.execute(rack, NODE, "dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n")
    return {line.split()[1] for line in text.splitlines() if line.startswith("ii")}


@pytest.mark.parametrize(
    ("word", "package"), [("openntpd", "openntpd"), ("ntpsec", "ntpsec"), ("timesyncd", "systemd-timesyncd")]
)
def test_it_takes_the_place_of_chrony(word, package, rack, repaired):
    """Each of them conflicts with chrony, as Debian packages it: apt removes chrony without asking."""
    assert "chrony" in installed(rack)
    faults.inject(rack, "daemon", [NODE, word])
    assert package in installed(rack)
    assert "chrony" not in installed(rack)
    assert hosts.execute(rack, NODE, "systemctl", "is-enabled", package) == "enabled"
