# SPDX-License-Identifier: BSD-2-Clause
"""The table and what stands around it (package, files, unit, the host's own firewall), compared in one pass."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

from . import host_firewall, nft, nft_trial, service_config
from .errors import InputError, NotAppliedError
from .files import read_bytes
from .nft import Runner, Table
from .run import run

APPLY, TRIAL, CONFIRM = "apply", "trial", "confirm"
Result = Dict[str, Any]  # what a module returns


class Wish(NamedTuple):
    """What the caller wants."""

    step: str
    table: Table
    rules: str
    path: str
    confirm_timeout_s: int
    open_for: list[str]
    service: dict[str, Any]
    trial_directory: str
    pending_directory: str

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Wish:
        """The module's parameters; the file of the rules is one of the service's files."""
        if params["confirm_timeout_s"] <= 0:
            seen = "{} s".format(params["confirm_timeout_s"])
            raise InputError("confirm timeout", seen, "more than 0 s", "correct rack_firewall_confirm_timeout_s")
        kept = {"path": params["path"], "content": params["rules"], "on_change": "reload"}
        service = {key: params[key] for key in ("packages", "directories", "units")}
        service["files"] = [kept, *params["files"]]
        table = Table(params["family"], params["table"])
        return cls(
            params["step"],
            table,
            params["rules"],
            params["path"],
            params["confirm_timeout_s"],
            params["open_for"],
            service,
            params["trial_directory"],
            params["pending_directory"],
        )


def carry_out(wish: Wish, check_mode: bool, connection: str | None, runner: Runner = run) -> dict[str, Any]:
    """One step; the result is what the module returns."""
    service = service_config.apply(wish.service, True, wish.pending_directory, runner)
    result: dict[str, Any] = {
        "changed": False,
        "diff": [],
        "actions": [],
        "checks": service["checks"],
        "packages_missing": service["packages_missing"],
        "trial_needed": False,
    }
    step = APPLY if check_mode else wish.step
    if service["packages_missing"]:
        if check_mode:  # without nft nothing can be compared; what would come is told all the same
            _tell(result, [f"load table {wish.table}"], [nft.diff(wish.table, None, wish.rules)])
            _tell(result, service["actions"], service["diff"])
        return result
    if step == TRIAL:
        before = nft.live(wish.table, runner)
        nft_trial.start(
            wish.table, wish.rules, wish.confirm_timeout_s, connection, directory=wish.trial_directory, runner=runner
        )
        _tell(
            result, [f"load table {wish.table} on trial"], [nft.diff(wish.table, before, nft.live(wish.table, runner))]
        )
        return result
    if step == CONFIRM:
        nft_trial.confirm(
            wish.table, wish.rules, wish.path, wish.confirm_timeout_s, connection,
            directory=wish.trial_directory, runner=runner,
        )  # fmt: skip
        _tell(result, [f"keep table {wish.table}"], [])
    elif _differs(wish, result, check_mode, runner):
        return result  # the caller's turn; nothing has been changed
    if not check_mode and (service["actions"] or step == CONFIRM):
        service = service_config.apply(wish.service, False, wish.pending_directory, runner)
        nft_trial.forget(wish.trial_directory)
        result["checks"] = service["checks"]
    _tell(result, service["actions"], service["diff"])
    _open(wish, result, check_mode, runner)
    counted = nft.counters(wish.table, runner) or {}
    result["counters"] = {name: value.packets for name, value in counted.items()}
    return result


def _differs(wish: Wish, result: Result, check_mode: bool, runner: Runner) -> bool:
    """Compare the live table with the wanted one; True when the wanted one has to be tried first.

    Rules that are those of the boot file were confirmed once: that file is written after a confirmation only.
    So a flushed or edited table is put right at once. Rules that nobody has confirmed are not, though they be live.
    """
    wanted, live = nft.wanted(wish.table, wish.rules, runner), nft.live(wish.table, runner)
    unconfirmed = nft_trial.pending(wish.trial_directory) is not None
    if live == wanted and not unconfirmed:
        return False
    proven = read_bytes(wish.path) == wish.rules.encode("utf-8") and not unconfirmed
    result["trial_needed"] = not proven
    if not check_mode:
        if not proven:
            return True
        nft.load(wish.table, wish.rules, runner)
        left = nft.live(wish.table, runner)
        if left != wanted:
            raise NotAppliedError(
                f"table {wish.table}", "other rules than were loaded", "the rules as given", "nft list ruleset"
            )
    word = "put right" if proven else "load"
    _tell(result, [f"{word} table {wish.table}"], [nft.diff(wish.table, live, wanted)])
    return False


def _open(wish: Wish, result: Result, check_mode: bool, runner: Runner) -> None:
    """firewalld and ufw, where they run. Opening a port cuts nobody off, so it needs no trial."""
    lacking = host_firewall.openings(wish.open_for, runner)
    if lacking and not check_mode:
        host_firewall.carry_out(lacking, wish.open_for, runner)
    if lacking:
        _tell(result, [one.what for one in lacking], [host_firewall.told(lacking)])


def _tell(result: Result, actions: list[str], diffs: list[dict[str, Any]]) -> None:
    result["actions"] += actions
    result["diff"] += diffs
    result["changed"] = bool(result["actions"])
