# SPDX-License-Identifier: Apache-2.0
"""Destinations written host:port, for whoever lets exactly those through."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from ansible.errors import AnsibleFilterError

NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def destinations(values: Any, name: str = "destinations") -> list[dict[str, Any]]:
    """[{host, port, address}] of ``host:port`` and ``[IPv6]:port``; ``address`` says that the host is one."""
    if not isinstance(values, (list, tuple)):
        raise AnsibleFilterError(f"{name} is {values!r}; wanted a list such as ['hooks.example.org:8443']")
    return [_destination(value, name) for value in values]


def _destination(value: Any, name: str) -> dict[str, Any]:
    wrong = AnsibleFilterError(
        f"{name}: {value!r}; wanted host:port, such as hooks.example.org:8443 or [2001:db8::1]:443"
    )
    host, colon, port = str(value).strip().lower().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise wrong
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        address = None
    if bracketed != (address is not None and address.version == 6) or (address is None and not NAME.fullmatch(bare)):
        raise wrong
    return {"host": bare if address is None else str(address), "port": int(port), "address": address is not None}


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"destinations": destinations}
