"""dpkg's status in its three parts (want, flag, status): a held package is installed (C78)."""

from __future__ import annotations

from collections.abc import Mapping


def installed(package: Mapping[str, str] | None) -> bool:
    """True for `install ok installed` and `hold ok installed`; a half-configured or removed one is not."""
    return package is not None and (package["flag"], package["status"]) == ("ok", "installed")


def told(package: Mapping[str, str] | None) -> str:
    return "absent" if package is None else " ".join((package["want"], package["flag"], package["status"]))
