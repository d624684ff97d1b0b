# SPDX-License-Identifier: BSD-2-Clause
"""The firewall's part of the node's checks: the table is there as the role left it, and what its counters say.

The role rack_firewall leaves a note in /etc/steadyrack/rack_firewall.json and its rules beside it; without the
note this host's firewall is nobody's business here, and the one row says so. A leak (``ntp_egress``) is no
failure of the firewall, which stopped it: it is a warning here, and the clock's check ``time.egress`` judges it.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, NamedTuple

from . import nft, nft_trial, verdict
from .errors import StateFileError, SteadyrackError
from .files import load_json, read_bytes
from .nft import Table
from .run import Completed, run

CHECK = "firewall.ntp"
POLICY_PATH = "etc/steadyrack/rack_firewall.json"
VERSION = 1
EGRESS = "ntp_egress"
AGAIN = "run playbooks/firewall.yml"


class FirewallPolicy(NamedTuple):
    """What the role rack_firewall wants of this host."""

    mode: str  # relay or node
    table: Table
    rules: str  # path of the file that is loaded at boot
    counters: tuple[str, ...]


def load_policy(root: str = "/") -> FirewallPolicy | None:
    """The note of the role, None when there is none; malformed or of a newer version is StateFileError."""
    path = os.path.join(root, POLICY_PATH)
    value = load_json(path)
    if value is None:
        return None
    if value.get("version") != VERSION:
        raise StateFileError(path, f"version {value.get('version')!r}", f"version {VERSION}", AGAIN)
    if value.get("mode") not in ("relay", "node"):
        raise StateFileError(path, f"mode {value.get('mode')!r}", "mode relay or node", AGAIN)
    words = [value.get(key) for key in ("family", "table", "rules")]
    names = value.get("counters")
    if not all(isinstance(word, str) and word for word in words):
        raise StateFileError(path, "no family, table or rules", "their names", AGAIN)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StateFileError(path, f"counters {names!r}", "a list of names", AGAIN)
    family, table, rules = (str(word) for word in words)
    return FirewallPolicy(str(value["mode"]), Table(family, table), rules, tuple(names))


class Wanted:
    """What the file of rules would load, kept for who looks again and again: nft is asked when something differs."""

    def __init__(self) -> None:
        self._text: bytes | None = None
        self._listing = ""

    def same(self, live: str, table: Table, text: bytes, runner: Callable[..., Completed] = run) -> bool:
        """Whether the table as listed is what ``text`` would load; what nft refuses is InputError."""
        if self._text == text and self._listing == live:
            return True
        # Anew also for a text that is known: nft takes names of protocols from files that come and go with packages.
        self._listing, self._text = nft.wanted(table, text.decode("utf-8", "replace"), runner), text
        return self._listing == live


def checks(
    root: str = "/", runner: Callable[..., Completed] = run, wanted: Wanted | None = None
) -> list[dict[str, Any]]:
    """The row of this host's table. Never raises: what cannot be read is a row ``unknown``.

    ``wanted`` is the caller's who looks again and again.
    """
    subject = socket.gethostname()
    try:
        policy = load_policy(root)
        if policy is None:
            reason = f"/{POLICY_PATH} is not there: the role rack_firewall has not run on this host"
            return [verdict.check_row(CHECK, subject, verdict.NOT_JUDGED, reason=reason)]
        return [judge(policy, root, runner, wanted)]
    except SteadyrackError as error:
        return [verdict.check_row(CHECK, subject, verdict.UNKNOWN, reason=error.sentence(), hint=error.next_step)]


def judge(
    policy: FirewallPolicy,
    root: str = "/",
    runner: Callable[..., Completed] = run,
    wanted: Wanted | None = None,
) -> dict[str, Any]:
    """The live table against the file of its rules, then the counters."""
    subject = str(policy.table)
    live = nft.live(policy.table, runner)
    if live is None:
        reason = "the table is not loaded: any host may be asked for the time, and may ask"
        return _row(subject, verdict.FAIL, "missing", reason, f"systemctl restart steadyrack-firewall, or {AGAIN}")
    trial = nft_trial.running(os.path.join(root, nft_trial.TRIAL_DIRECTORY.lstrip("/")))
    if trial is not None and live == trial.get("target"):
        reason = f"a trial of new rules runs: confirmed within {trial['timeout_s']} s, or the old ones come back"
        return _row(subject, verdict.NOT_JUDGED, "on_trial", reason, None)
    text = read_bytes(os.path.join(root, policy.rules.lstrip("/")))
    if text is None:
        reason = f"{policy.rules} is not there: the table would not come back at boot"
        return _row(subject, verdict.FAIL, "not_kept", reason, AGAIN)
    if not (wanted or Wanted()).same(live, policy.table, text, runner):
        reason = f"the live table is not what {policy.rules} would load"
        return _row(subject, verdict.FAIL, "edited", reason, f"nft list table {policy.table}; {AGAIN} puts it right")
    counted = nft.counters(policy.table, runner) or {}
    gone = [name for name in policy.counters if name not in counted]
    if gone:
        return _row(subject, verdict.UNKNOWN, "unreadable", f"no counter {', '.join(gone)}", AGAIN)
    measured = ", ".join(f"{name} {counted[name].packets}" for name in policy.counters)
    leaked = policy.mode == "node" and EGRESS in counted and counted[EGRESS].packets > 0
    if not leaked:
        return _row(subject, verdict.PASS, "ok", None, None, measured=measured)
    reason = f"{counted[EGRESS].packets} packets for a foreign time server were stopped: something here asks one"
    hint = "journalctl -k -g ntp-egress (UID= is the sender); ss -uanp; chronyc sources"
    return _row(subject, verdict.PASS, "leak", reason, hint, measured=measured, severity=verdict.WARNING)


def _row(
    subject: str,
    judged: str,
    state: str,
    reason: str | None,
    hint: str | None,
    *,
    measured: str | None = None,
    severity: str | None = None,
) -> dict[str, Any]:
    return verdict.check_row(
        CHECK, subject, judged, state, severity=severity, expected="as its file", measured=measured or state,
        source="nft list table", reason=reason, hint=hint,
    )  # fmt: skip
