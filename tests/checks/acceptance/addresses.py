"""One form for each address, so that two spellings of one host compare equal."""

from __future__ import annotations

import ipaddress


def canonical(name: object) -> str:
    """An address in its shortest form without brackets, a name in lower case without the last dot."""
    bare = str(name).strip().strip("[]").rstrip(".").lower()
    address, percent, zone = bare.partition("%")
    try:
        return str(ipaddress.ip_address(address)) + percent + zone
    except ValueError:
        return bare


def in_url(address: str) -> str:
    """An address as it stands in a URL: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def networks(values: object) -> list[str]:
    """Networks in canonical form, sorted."""
    found = [str(ipaddress.ip_network(str(value), strict=False)) for value in values]  # type: ignore[attr-defined]
    return sorted(found)
