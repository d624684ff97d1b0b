"""The Debian mirror of this machine, read from its own apt configuration; no host name is written down here.

Where the machine is not a Debian (Ubuntu, say), mmdebstrap's own default for Debian is used: an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

APT = Path("/etc/apt")
_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)")


def _entries(apt: Path) -> Iterator[tuple[str, str]]:
    """(address, suite) of every enabled binary source, one-line and deb822 alike."""
    files = [apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))]
    for path in files:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.M))
                if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes").lower() != "no":
                    for uri in fields.get("URIs", "").split():
                        for suite in fields.get("Suites", "").split():
                            yield uri, suite
        elif path.suffix == ".list":
            for line in text.splitlines():
                if match := _ONE_LINE.match(line.strip()):
                    yield match[1], match[2]


@cache
def archives(apt: Path = APT) -> tuple[str | None, str | None]:
    """(main archive, security archive) of a Debian machine; None where there is none configured."""
    main = security = None
    for uri, suite in _entries(apt):
        path = uri.rstrip("/")
        if path.endswith("/debian-security") or (suite.endswith("-security") and path.endswith("/debian")):
            security = security or uri
        elif path.endswith("/debian"):
            main = main or uri
    return main, security


def lines(suite: str, components: str = "main", apt: Path = APT) -> list[str]:
    """The one-line sources for `suite`, as mmdebstrap takes them; [] leaves the choice to mmdebstrap."""
    main, security = archives(apt)
    if main is None:
        return []
    found = [f"deb {main} {suite} {components}", f"deb {main} {suite}-updates {components}"]
    if security:
        found.append(f"deb {security} {suite}-security {components}")
    return found
