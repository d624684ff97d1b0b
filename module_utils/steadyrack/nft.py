# SPDX-License-Identifier: BSD-2-Clause
"""One nftables table of our own: what is loaded, what a file would load, and the exchange of one for the other.

Texts that nft lists differ from what it was given (order of sets, names of numbers), and differ again from
release to release. So the wanted file is loaded into an empty network namespace by the same nft under the same
kernel, and the two listings are compared: equal text is an equal table. Values of counters are left out of both
listings (``nft --stateless``). Other tables are never listed, flushed or named.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, NamedTuple

from .errors import AccessError, InputError, NotAppliedError, ToolError
from .run import Completed, run

Runner = Callable[..., Completed]

# nft answers in milliseconds; a large ruleset of somebody else's takes longer to be cached. Seconds.
NFT_TIMEOUT_S = 20.0
# Fixed text; the words after it are arguments. In a namespace of its own nothing it loads meets a packet.
_SCRATCH = 'nft -f - && nft --stateless list table "$1" "$2"'
_COUNTER = r"(counter\s+{name}\s*\{{)\s*(\}})"


class Table(NamedTuple):
    """The name of a table: family and name."""

    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"


class Counter(NamedTuple):
    """What a named counter has counted."""

    packets: int
    bytes: int


def live(table: Table, runner: Runner = run) -> str | None:
    """The table as the kernel has it, without the counters' values; None when there is no such table."""
    done = runner(["nft", "--stateless", "list", "table", table.family, table.name], NFT_TIMEOUT_S)
    if done.rc == 0:
        return done.out
    if "No such file or directory" in done.err and not done.missing:
        return None
    raise trouble(done)


def wanted(table: Table, text: str, runner: Runner = run) -> str:
    """The table as the kernel would have it after ``nft -f`` of this text; what nft refuses is InputError."""
    argv = ["unshare", "--net", "--", "sh", "-c", _SCRATCH, "sh", table.family, table.name]
    done = runner(argv, NFT_TIMEOUT_S, text)
    if done.rc == 0:
        return done.out
    if done.missing or done.err.startswith("unshare:"):
        raise AccessError(
            "a network namespace to try the rules in",
            done.said,
            "unshare --net",
            "run as root; a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN, or leave the role out there",
        )
    raise _refused(done)


def check(text: str, runner: Runner = run) -> None:
    """``nft -c -f``: the kernel's own opinion on this host, nothing loaded."""
    done = runner(["nft", "-c", "-f", "-"], NFT_TIMEOUT_S, text)
    if done.rc != 0:
        raise _refused(done)


def load(table: Table, text: str, runner: Runner = run) -> None:
    """Put the table of ``text`` in the place of the one there is, in one transaction; counters keep their values.

    A stray chain or set that somebody added goes with the old table. What the counters count between reading
    and loading (about a millisecond) is lost.
    """
    script = replacement(table, seeded(text, counters(table, runner) or {}))
    check(script, runner)
    done = runner(["nft", "-f", "-"], NFT_TIMEOUT_S, script)
    if done.rc != 0:
        raise NotAppliedError(f"table {table}", f"nft -f: {done.said}", "loaded", "nothing was changed; see nft -c -f")


def replacement(table: Table, text: str) -> str:
    """The script that makes ``text`` all there is of the table. Declaring it first makes the deletion safe."""
    return f"table {table} {{\n}}\ndelete table {table}\n{text}"


def removal(table: Table) -> str:
    """The script after which there is no such table, whether there was one or not."""
    return f"table {table} {{\n}}\ndelete table {table}\n"


def seeded(text: str, values: dict[str, Counter]) -> str:
    """The text with its empty counters set to what they had counted."""
    for name, value in values.items():
        pattern = _COUNTER.format(name=re.escape(name))
        text = re.sub(pattern, rf"\1 packets {value.packets} bytes {value.bytes} \2", text, count=1)
    return text


def counters(table: Table, runner: Runner = run) -> dict[str, Counter] | None:
    """The named counters of the table; None when there is no such table."""
    done = runner(["nft", "-j", "list", "counters", "table", table.family, table.name], NFT_TIMEOUT_S)
    if done.rc != 0:
        if "No such file or directory" in done.err and not done.missing:
            return None
        raise trouble(done)
    return parse_counters(done.out, table)


def parse_counters(text: str, table: Table) -> dict[str, Counter] | None:
    """Counters of ``table`` out of nft's JSON (libnftables-json(5)).

    nft 1.0.6 answers for a table that does not exist with no counters and exit status 0, so nothing is None.
    """
    found: dict[str, Counter] = {}
    try:
        for entry in json.loads(text)["nftables"]:
            counter = entry.get("counter")
            if counter and (counter["family"], counter["table"]) == (table.family, table.name):
                found[counter["name"]] = Counter(int(counter["packets"]), int(counter["bytes"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolError(
            "nft -j list counters", f"{type(error).__name__}: {error}", "its JSON", "nft --version"
        ) from None
    return found or None


def trouble(done: Completed) -> AccessError | ToolError:
    """Why nft does not answer at all, as one clear error."""
    if done.missing:
        return ToolError("nft", "not installed", "the package nftables", "install nftables")
    if "Operation not permitted" in done.err or "must be root" in done.err:
        return AccessError(
            "nft", done.said, "leave to list tables", "run as root; a container needs CAP_NET_ADMIN for its own network"
        )
    return ToolError(
        "nft",
        done.said,
        "a kernel with nf_tables",
        "modprobe nf_tables; a host or container whose kernel has none cannot have this role",
    )


def _refused(done: Completed) -> Exception:
    """nft read the rules and did not take them; anything else is about nft or the kernel."""
    if done.missing or "Operation not permitted" in done.err or "cache initialization failed" in done.err:
        return trouble(done)
    if "rotocol not supported" in done.err:
        return trouble(done)
    return InputError(
        "the rules",
        f"refused by nft: {done.said}",
        "rules that nft takes",
        "correct rack_firewall_extra_rules (iifname, not iif: interfaces by name); nothing was changed",
    )


def diff(table: Table, before: str | None, after: str | None, path: str = "") -> dict[str, Any]:
    """One entry of Ansible's diff."""
    header = f"table {table}" + (f" ({path})" if path else "")
    return {
        "before_header": header, "after_header": header, "before": before or "", "after": after or "",
    }  # fmt: skip
