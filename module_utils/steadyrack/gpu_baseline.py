# SPDX-License-Identifier: BSD-2-Clause
"""The counters of each GPU as they stood when it was first seen, or last accepted: what a rise is measured from.

Error counts say little by their height and much by their rise. Each counter of a card, by UUID, has a base, the time
of the base and the value last seen. A rise stays reported until somebody accepts it (``accept``) or the counter begins
anew. A card's first sight is its base. A counter below its last value has begun anew, and the new value is its base;
those that live as long as the driver is loaded begin anew with it, which another boot, or less energy counted than
before, gives away even where they have already passed their old height.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Dict, Iterable, Sequence

from . import files, verdict
from .errors import InputError, StateFileError, SteadyrackError

PATH = "/var/lib/steadyrack/gpu_baseline.json"
LOCK_PATH = "/run/steadyrack/gpu_baseline.lock"
VERSION = 1
# Somebody else's pass holds the lock for milliseconds; whoever waits longer goes on without writing.
LOCK_WAIT_S = 5.0
# Times and energy alone are not worth a write more often than this.
STALE_S = 3600.0

# Counters kept in the InfoROM for the board's life, and those of the loaded driver, by their place in the record.
LIFE = (
    "ecc.corrected_aggregate", "ecc.uncorrected_aggregate", "sram.corrected", "sram.uncorrected",
    "remapped_rows.corrected", "remapped_rows.uncorrected",
)  # fmt: skip
SINCE_LOAD = (
    "pcie_errors.replay", "pcie_errors.replay_rollover", "pcie_errors.correctable", "pcie_errors.naks_received",
    "pcie_errors.receiver", "pcie_errors.bad_tlp", "pcie_errors.naks_sent", "pcie_errors.bad_dllp",
    "pcie_errors.non_fatal", "pcie_errors.fatal", "pcie_errors.lcrc", "pcie_errors.lane",
)  # fmt: skip

Record = Dict[str, Any]


@dataclass(frozen=True)
class Baseline:
    """What is known of the cards' past: entries by UUID; ``trouble``: why nothing can be told in this pass."""

    gpus: Record = field(default_factory=dict)
    trouble: str | None = None
    # Why this reading could not be kept.
    unkept: str | None = None
    # Counters that began anew in this pass, in words, by UUID.
    notes: dict[str, str] = field(default_factory=dict)

    def counter(self, uuid: str | None, name: str) -> Record | None:
        """``base``, ``at`` and ``last`` of a counter, None where it has none."""
        found: Record | None = self.gpus.get(uuid or "", {}).get("counters", {}).get(name)
        return found

    def slots(self) -> set[str]:
        """Every slot in which a card has been seen, with or without one now."""
        return {str(entry["bus_id"]) for entry in self.gpus.values() if entry.get("bus_id")}


def value_of(gpu: Record, name: str) -> int | None:
    """A counter's value in a GPU's record, None where it was not read."""
    where, _dot, last = name.partition(".")
    holder = gpu.get(where)
    return holder.get(last) if isinstance(holder, dict) else None


# --- from one pass to the next -----------------------------------------------------------------


def updated(kept: Record, gpus: Iterable[Record], at: str, boot: str | None) -> tuple[Record, dict[str, str]]:
    """The entries after this reading, and by UUID which counters began anew. ``boot``: the kernel's id of this boot."""
    now, notes = copy.deepcopy(kept), {}
    for gpu in gpus:
        if gpu["state"] != "ok" or not gpu["uuid"]:
            continue
        entry = now.setdefault(gpu["uuid"], {"first_seen": at, "counters": {}, "energy_mj": None, "boot": None})
        anew = _begun_anew(entry, gpu, boot, at)
        if anew:
            notes[str(gpu["uuid"])] = "counted anew: " + ", ".join(anew)
        entry.update(bus_id=gpu["bus_id"], serial=gpu["serial"], seen=at, boot=boot or entry["boot"])
        entry["energy_mj"] = entry["energy_mj"] if gpu["energy_mj"] is None else gpu["energy_mj"]
    return now, notes


def _begun_anew(entry: Record, gpu: Record, boot: str | None, at: str) -> list[str]:
    """Bring the counters of an entry up to date; those that began anew, with the values before and now."""
    reloaded = _reloaded(entry, gpu, boot)
    anew = []
    for name in LIFE + SINCE_LOAD:
        value, counter = value_of(gpu, name), entry["counters"].get(name)
        if value is None:
            continue
        if counter is None:
            entry["counters"][name] = {"base": value, "at": at, "last": value}
        elif value < counter["last"] or (reloaded and name in SINCE_LOAD and counter["last"] > 0):
            anew.append("{} ({} before, {} now)".format(name, counter["last"], value))
            entry["counters"][name] = {"base": value, "at": at, "last": value}
        else:
            counter["last"] = value
    return anew


def _reloaded(entry: Record, gpu: Record, boot: str | None) -> bool:
    """Whether the driver has been loaded since the entry was written."""
    if None not in (boot, entry["boot"]) and boot != entry["boot"]:
        return True
    energy = gpu["energy_mj"]
    return None not in (energy, entry["energy_mj"]) and energy < entry["energy_mj"]


def accepted(kept: Record, uuid: str | None, at: str) -> tuple[Record, list[Record]]:
    """The entries with the values last seen as base, of one card or of all, and the changes: uuid, counter, from, to.

    InputError for a card that is not kept.
    """
    if uuid is not None and uuid not in kept:
        raise InputError(uuid, "no card of the baseline", "one of " + (", ".join(sorted(kept)) or "none kept yet"),
                         "take the UUID from `steadyrack status`")  # fmt: skip
    now, changes = copy.deepcopy(kept), []
    for name in [uuid] if uuid is not None else sorted(now):
        for key, counter in now[name]["counters"].items():
            if counter["last"] != counter["base"]:
                changes.append({"uuid": name, "counter": key, "from": counter["base"], "to": counter["last"]})
                counter.update(base=counter["last"], at=at)
    return now, changes


# --- the file ----------------------------------------------------------------------------------


def load(root: str = "/") -> Record:
    """The entries in the file, none where there is no file; StateFileError for one that is damaged or newer."""
    path = files.below(root, PATH)
    value = files.load_json(path) or {"version": VERSION, "gpus": {}}
    if value.get("version") != VERSION or not _whole(value.get("gpus")):
        raise StateFileError(path, "version {!r}".format(value.get("version")), f"version {VERSION}, whole",
                             "it is set aside by the next `steadyrack check`, which begins a new one")  # fmt: skip
    return dict(value["gpus"])


def _whole(gpus: Any) -> bool:
    """Whether entries have the form in which they are written."""
    return isinstance(gpus, dict) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("seen"), str)
        and isinstance(entry.get("boot"), (str, type(None)))
        and isinstance(entry.get("energy_mj"), (int, type(None)))
        and {"energy_mj", "boot"} <= set(entry)
        and isinstance(entry.get("counters"), dict)
        and all(_is_counter(counter) for counter in entry["counters"].values())
        for entry in gpus.values()
    )


def _is_counter(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("at"), str)
        and all(isinstance(value.get(key), int) for key in ("base", "last"))
    )


def look(root: str, gpus: Sequence[Record]) -> Baseline:
    """The baseline for this reading, nothing written: a card that is not kept yet has none."""
    try:
        kept = load(root)
    except SteadyrackError as error:
        return Baseline(trouble=error.sentence())
    now, notes = updated(kept, [gpu for gpu in gpus if gpu["uuid"] in kept], verdict.utc_now(), boot_id(root))
    return Baseline(now, notes=notes)


def keep(root: str, gpus: Sequence[Record], *, repair: bool = True) -> Baseline:
    """The baseline for this reading, kept for the next one.

    A damaged file is set aside, told in this pass, and begun anew with this reading; without ``repair`` it stays for
    whoever tells it. Who may not write, or finds the lock taken, goes on as with ``look``.
    """
    try:
        trouble = _trouble(root)
        if trouble is not None and not repair:
            return Baseline(trouble=trouble)
        kept = {} if trouble is not None else load(root)
        now, notes = updated(kept, gpus, verdict.utc_now(), boot_id(root))
        if trouble is not None or _worth_writing(kept, now):
            with files.locked(files.below(root, LOCK_PATH), LOCK_WAIT_S):
                now, notes = _write(root, gpus, aside=trouble is not None)
    except SteadyrackError as error:
        return replace(look(root, gpus), unkept=error.sentence())
    return Baseline(now, trouble=trouble, notes=notes)


def accept(root: str = "/", uuid: str | None = None) -> list[Record]:
    """Take the values last seen as the base, of one card or of all; the changes made. Needs root."""
    with files.locked(files.below(root, LOCK_PATH), LOCK_WAIT_S):
        now, changes = accepted(load(root), uuid, verdict.utc_now())
        if changes:
            _store(root, now)
    return changes


def boot_id(root: str = "/") -> str | None:
    """The kernel's id of this boot, None where it does not tell."""
    try:
        return files.read_text(files.below(root, "/proc/sys/kernel/random/boot_id"))
    except SteadyrackError:
        return None


def _trouble(root: str) -> str | None:
    """What is wrong with the file, as a sentence."""
    try:
        load(root)
    except StateFileError as error:
        return error.sentence()
    return None


def _write(root: str, gpus: Sequence[Record], aside: bool) -> tuple[Record, dict[str, str]]:
    """Under the lock: what the file says now, brought up to date and written."""
    path = files.below(root, PATH)
    if aside and os.path.exists(path):
        files.set_aside(path)
    now, notes = updated(load(root), gpus, verdict.utc_now(), boot_id(root))
    _store(root, now)
    return now, notes


def _store(root: str, gpus: Record) -> None:
    path = files.below(root, PATH)
    files.make_directory(os.path.dirname(path))
    files.atomic_write(path, files.dump_json({"version": VERSION, "gpus": gpus}), 0o644)


def _worth_writing(kept: Record, now: Record) -> bool:
    """A card, counter or boot that differs, or times that have grown old."""
    return any(
        uuid not in kept
        or any(entry[key] != kept[uuid].get(key) for key in entry if key not in ("seen", "energy_mj"))
        or abs(seconds_between(kept[uuid]["seen"], entry["seen"])) >= STALE_S
        for uuid, entry in now.items()
    )


def seconds_between(one: str, other: str) -> float:
    """Seconds from one time of a row to another; 0 where one of them is none."""
    try:
        begin, end = (datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ") for text in (one, other))
    except ValueError:
        return 0.0
    return (end - begin).total_seconds()
