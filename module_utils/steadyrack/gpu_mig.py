# SPDX-License-Identifier: BSD-2-Clause
"""MIG layouts: what is declared against what is there, the steps between the two, and what to say of it.

The mode lasts over a reboot (on Ampere), the instances do not: they are made again at every boot. An instance
with a process on it is never taken away, and nothing here resets a GPU: where a change of mode waits for a
reset, the row says the commands. NVML takes instances by place, so a layout is first arranged on the card's
memory slices, round whatever of it stands already.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Sequence

from . import gpu_policy, nvml, verdict
from .errors import InputError, SteadyrackError
from .gpu_policy import Policy, Rule, Wish

Record = Dict[str, Any]
Step = Dict[str, Any]
Devices = Dict[str, int]

TAKES_AWAY = (
    "with MIG on there is no compute mode, so no spare can be kept; remapped rows cannot be read while instances "
    "stand, nor can the load of the whole GPU"
)
# Without NVIDIA's daemon, which holds the GPU; a reboot does it as well.
RESET = (
    "when no job runs: systemctl stop nvidia-persistenced && nvidia-smi -i {bus_id} -pm 0 && "
    "nvidia-smi -i {bus_id} --gpu-reset, start it again, then `steadyrack gpu apply`; or reboot"
)
_HINTS = {
    "wrong_layout": "`steadyrack gpu apply` as root brings it back; `nvidia-smi mig -lgi` shows what is there",
    "unexpected_on": "look who switched it on; declare a layout in gpu_policy_mig, or `devices: {}` to have it off",
    "busy": "let the jobs on this GPU end or drain the host; the next look, or `steadyrack gpu apply`, does the rest",
    "unsupported": "correct gpu_policy_mig: `nvidia-smi mig -lgip` lists what the card can be cut into",
    "unknown": "run it as root; look at the kernel log when it hangs",
}


# --- arranging ---------------------------------------------------------------------------------


def arrange(devices: Devices, profiles: Record, kept: Sequence[Record] = ()) -> list[tuple[str, int]] | None:
    """Places (profile, first memory slice) for the declared instances beside those that are kept, or None.

    The biggest first, for they have the fewest places. ``kept``: profile, start and size of each; they are not
    part of the answer, and count as declared ones.
    """
    left = dict(devices)
    for one in kept:
        left[one["profile"]] = left.get(one["profile"], 0) - 1
    if any(count < 0 for count in left.values()):
        return None
    if any(name not in profiles or devices[name] > profiles[name]["instances"] for name in devices):
        return None
    order = sorted(left, key=lambda name: (-profiles[name]["size"], -profiles[name]["slices"], name))
    wanted = [name for name in order for _ in range(left[name])]
    taken = {place for one in kept for place in range(one["start"], one["start"] + one["size"])}
    spare = max(profile["slices"] for profile in profiles.values()) - sum(
        profiles[name]["slices"] * count for name, count in devices.items()
    )
    return None if spare < 0 else _placed(wanted, profiles, taken)


def _placed(wanted: Sequence[str], profiles: Record, taken: set[int], least: int = 0) -> list[tuple[str, int]] | None:
    """The first way to lay them out, tried from the first one on; equal ones in order of place, for time's sake."""
    if not wanted:
        return []
    name, following = wanted[0], wanted[1:]
    for start in sorted(profiles[name]["starts"]):
        slices = set(range(start, start + profiles[name]["size"]))
        if start >= least and not slices & taken:
            same = bool(following) and following[0] == name
            rest = _placed(following, profiles, taken | slices, start + 1 if same else 0)
            if rest is not None:
                return [(name, start), *rest]
    return None


def is_whole(instance: Record, profiles: Record) -> bool:
    """An instance whose one compute instance takes all of it."""
    return bool(instance["compute"] == [profiles[instance["profile"]]["slices"]])


def best_kept(devices: Devices, layout: Record) -> list[Record] | None:
    """The most instances that can stay so that the declared ones still fit; None when they never fit.

    Those with processes stay before others; one that is cut up inside does not, one that is not finished may.
    """
    fit = [one for one in layout["instances"] if one["profile"] in devices and _may_stay(one, layout["profiles"])]
    best: list[Record] | None = None
    for chosen in _subsets(fit):
        better = best is None or _worth(chosen) > _worth(best)
        if better and arrange(devices, layout["profiles"], chosen) is not None:
            best = chosen
    return best


def _may_stay(instance: Record, profiles: Record) -> bool:
    return not instance["compute"] or is_whole(instance, profiles)


def _worth(instances: Sequence[Record]) -> tuple[int, int]:
    return sum(bool(one["processes"]) for one in instances), len(instances)


def _subsets(instances: Sequence[Record]) -> Iterator[list[Record]]:
    """Every choice of them; a card has eight places at most."""
    for mask in range(1 << len(instances)):
        yield [one for position, one in enumerate(instances) if mask >> position & 1]


# --- steps -------------------------------------------------------------------------------------


def steps(gpu: Record, wish: Wish) -> list[Step]:
    """What brings this GPU to its declared layout; empty when it is there, must wait, or cannot be brought there.

    {do: mode, on} | {do: destroy, instance} | {do: finish, instance} | {do: create, profile, start}
    """
    if wish.mig is None or gpu["uuid"] is None or state(gpu, wish) not in ("wrong_layout", "unexpected_on"):
        return []
    layout = gpu["mig_layout"]
    if not wish.mig:
        there = layout["instances"] if layout else []
        return [*(_destroy(one) for one in there), {"do": "mode", "on": False}]
    if layout is None:
        return []
    kept = best_kept(wish.mig, layout) or []
    places = arrange(wish.mig, layout["profiles"], kept) or []
    return [
        *([] if gpu["mig"]["current"] and gpu["mig"]["pending"] else [{"do": "mode", "on": True}]),
        *(_destroy(one) for one in layout["instances"] if one not in kept),
        *({"do": "finish", "instance": one["id"]} for one in kept if not one["compute"]),
        *({"do": "create", "profile": name, "start": start} for name, start in places),
    ]


def _destroy(instance: Record) -> Step:
    return {"do": "destroy", "instance": instance["id"]}


def change(gpu: Record, wish: Wish) -> Record | None:
    """The change that the steps come to, as ``gpu_apply`` lists changes; None when there is none."""
    if not steps(gpu, wish):
        return None
    # Instances go with a boot or a reset; a mode, or instances of another kind, are somebody's doing.
    lost = bool(wish.mig) and gpu["mig"]["current"] and not gpu["mig_layout"]["instances"]
    return {
        "uuid": gpu["uuid"], "bus_id": gpu["bus_id"], "setting": "mig", "before": text(gpu),
        "after": in_words(wish.mig or {}), "cause": "lost_state" if lost else "drift",
    }  # fmt: skip


def wanted_changes(pairs: Iterable[tuple[Record, Wish]]) -> list[Record]:
    """One change for each GPU that has steps to take."""
    found = (change(gpu, wish) for gpu, wish in pairs)
    return [one for one in found if one is not None]


def bring(session: nvml.Session, gpu: Record, wish: Wish) -> bool:
    """Take the steps, one after the other; True when the mode changed, which on Ampere resets the GPU.

    What a step refuses ends it: what stands by then is kept, and the next run goes on from there. A mode that
    stays pending ends it without an error.
    """
    changed = False
    for step in steps(gpu, wish):
        if step["do"] == "mode":
            if not session.set_mig_mode(gpu["uuid"], step["on"]):
                return False
            changed = step["on"] != gpu["mig"]["current"]
        elif step["do"] == "create":
            profile = gpu["mig_layout"]["profiles"][step["profile"]]
            session.create_mig_instance(gpu["uuid"], profile, step["start"])
        elif step["do"] == "finish":
            session.finish_mig_instance(gpu["uuid"], step["instance"])
        else:
            session.destroy_mig_instance(gpu["uuid"], step["instance"])
    return changed


def look(session: nvml.Session, gpus: Iterable[Record], policy: Policy) -> None:
    """Read what each GPU with a declared layout can be cut into, where its reading has not told it (MIG is off)."""
    for gpu in gpus:
        wish = gpu_policy.resolve(policy, gpu)
        if not wish.mig or gpu["mig_layout"] is not None or "mig_layout" in gpu["errors"] or not _has_mig(gpu):
            continue
        try:
            gpu["mig_layout"] = session.read_mig(gpu["uuid"])
        except SteadyrackError as error:
            gpu["errors"]["mig_layout"] = {"code": None, "name": error.sentence(), "call": "read_mig"}
            gpu["mig_failure"] = error.sentence()


def _has_mig(gpu: Record) -> bool:
    return bool(gpu["state"] == "ok" and gpu["uuid"] is not None and gpu["mig"] is not None)


# --- judging -----------------------------------------------------------------------------------


def problem(gpu: Record, wish: Wish) -> str | None:
    """Why the card can never have the declared layout; None when it can, or that cannot be told."""
    if not wish.mig or gpu["state"] != "ok":
        return None
    if gpu["mig"] is None:
        return "this card has no MIG" if _without(gpu) else None
    if gpu["mig_layout"] is None:
        return None
    profiles = gpu["mig_layout"]["profiles"]
    unknown = sorted(set(wish.mig) - set(profiles))
    if unknown:
        return "the card has no profile {} (it has {})".format(", ".join(unknown), ", ".join(sorted(profiles)))
    return None if arrange(wish.mig, profiles) is not None else f"{in_words(wish.mig)} does not fit on the card"


def refuse(pairs: Iterable[tuple[Record, Wish]]) -> None:
    """InputError that lists every GPU that cannot be cut as declared; before anything is set."""
    found = [(gpu, problem(gpu, wish)) for gpu, wish in pairs]
    bad = [f"{gpu_policy.label(gpu)}: {why}" for gpu, why in found if why]
    if bad:
        raise InputError("MIG layout", "; ".join(bad), "profiles of each card, as many as fit",
                         "correct gpu_policy_mig; nothing was changed on any GPU")  # fmt: skip


def state(gpu: Record, wish: Wish) -> str:
    """How the GPU stands against its declared layout; see docs/checks.md, gpu.mig. Else the GPU's own state."""
    if gpu["state"] != "ok":
        return str(gpu["state"])
    if gpu["mig"] is None:
        if not _without(gpu):
            return "unknown"
        return "not_declared" if wish.mig is None else "unsupported" if wish.mig else "off"
    on, pending = gpu["mig"]["current"], gpu["mig"]["pending"]
    if wish.mig is None:
        return "unexpected_on" if on else "mode_pending" if pending else "not_declared"
    if problem(gpu, wish) is not None:
        return "unsupported"
    if not on:
        return _state_off(gpu, bool(wish.mig))
    if not wish.mig and not pending:
        return "mode_pending"
    return "unknown" if gpu["mig_layout"] is None else _state_on(gpu, wish)


def _without(gpu: Record) -> bool:
    """A card, or a driver, that knows no MIG."""
    return (gpu["errors"].get("mig") or {}).get("code") in (nvml.NOT_SUPPORTED, nvml.FUNCTION_NOT_FOUND)


def _state_off(gpu: Record, wanted: bool) -> str:
    """MIG is off. A pending mode that nobody declared is taken back, which needs no reset."""
    pending = gpu["mig"]["pending"]
    if not wanted:
        return "wrong_layout" if pending else "off"
    if pending:
        return "mode_pending"
    if gpu["processes"] is None:
        return "unknown"
    return "busy" if gpu["processes"] else "wrong_layout"


def _state_on(gpu: Record, wish: Wish) -> str:
    """MIG is on; an instance in use is in the way only where it would have to go."""
    layout = gpu["mig_layout"]
    kept = best_kept(wish.mig, layout) or [] if wish.mig else []
    gone = [one for one in layout["instances"] if one not in kept]
    if wish.mig and not gone and counts(layout) == wish.mig and all(one["compute"] for one in kept):
        return "ok" if gpu["mig"]["pending"] else "wrong_layout"
    if any(one["processes"] for one in gone):
        return "busy"
    return "wrong_layout" if wish.mig else "unexpected_on"


def counts(layout: Record) -> Devices:
    """Instances by profile."""
    names = [one["profile"] for one in layout["instances"]]
    return {name: names.count(name) for name in names}


def is_broken(row: Record) -> bool:
    """A row of ours that says that the layout was asked for and does not stand.

    What waits for a reset or for jobs to end is no error of the run, and neither is MIG that nobody declared.
    """
    declared = row["expected"] is not None
    return row["id"] == "gpu.mig" and declared and row["state"] in ("wrong_layout", "unexpected_on", "unsupported")


def is_worth_a_line(row: Record) -> bool:
    """What does not fail the run and a person should know all the same."""
    if row["id"] != "gpu.mig" or is_broken(row):
        return False
    return bool(row["verdict"] == verdict.FAIL or (row["state"] == "unknown" and row["expected"] is not None))


def note_failures(gpus: Iterable[Record], failures: dict[str, str]) -> None:
    """Put beside each GPU's record what a step answered."""
    for gpu in gpus:
        if gpu["uuid"] in failures:
            gpu["mig_failure"] = failures[gpu["uuid"]]


# --- words -------------------------------------------------------------------------------------


def in_words(devices: Devices) -> str:
    """``2 x 3g.40gb``; ``off`` when nothing is declared on."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(devices.items())) or "off"


def text(gpu: Record) -> str | None:
    """How the GPU is cut now, None when it cannot be told."""
    if gpu.get("mig") is None:
        return None
    if not gpu["mig"]["current"]:
        return "off"
    if gpu["mig_layout"] is None:
        return None
    return in_words(counts(gpu["mig_layout"])) if gpu["mig_layout"]["instances"] else "on, no instances"


def row(gpu: Record, wish: Wish) -> Record:
    """One GPU's MIG layout against the policy. ``mig_failure`` of the record: what a step answered a moment ago."""
    found = state(gpu, wish)
    return verdict.check_row(
        "gpu.mig", str(gpu["uuid"] or gpu["bus_id"] or "unnamed GPU"), _verdict(gpu, found), found,
        expected=None if wish.mig is None else in_words(wish.mig), measured=text(gpu), source="nvml",
        reason=_reason(gpu, wish, found), hint=_hint(gpu, found),
    )  # fmt: skip


def missing_row(rule: Rule) -> Record:
    """A layout for a GPU that is not there, or is not called so."""
    return verdict.check_row(
        "gpu.mig", rule.match.value, verdict.FAIL, "missing", expected=in_words(rule.mig or {}), source="nvml",
        reason=f"the policy cuts {rule.match}, and no GPU answers to it",
        hint="no GPU here has that name: look at the slot, or correct the inventory after a swap",
    )  # fmt: skip


def unread_row(node: Record, device: Record) -> Record:
    """One slot of a node whose NVML cannot be asked, where layouts are declared."""
    return verdict.check_row(
        "gpu.mig", device["bus_id"], verdict.UNKNOWN, node["state"], source="nvml",
        reason=node["reason"], hint=node["next_step"],
    )  # fmt: skip


def _verdict(gpu: Record, found: str) -> str:
    if found in ("ok", "off"):
        return verdict.PASS
    if found == "not_declared":
        return verdict.NOT_JUDGED
    return verdict.UNKNOWN if found == "unknown" or gpu["state"] != "ok" else verdict.FAIL


def _hint(gpu: Record, found: str) -> str | None:
    return RESET.format(bus_id=gpu["bus_id"]) if found == "mode_pending" else _HINTS.get(found)


def _reason(gpu: Record, wish: Wish, found: str) -> str | None:
    """What a person has to know beside expected and measured."""
    if gpu["state"] != "ok":
        return "the GPU is {}".format(gpu["state"])
    if found == "unknown":
        names = [name for name in ("mig", "mig_layout", "processes") if name in gpu["errors"]]
        return "not read: " + (", ".join(f"{name}: {gpu['errors'][name]['name']}" for name in names) or "mig_layout")
    if found == "not_declared":
        return "no MIG layout is declared for this GPU"
    said = {
        "unsupported": problem(gpu, wish),
        "mode_pending": _pending(gpu),
        "unexpected_on": "MIG is on and {}: {}".format(
            "not declared" if wish.mig is None else "declared off", TAKES_AWAY
        ),
        "busy": "processes run on what would have to go: " + _busy(gpu),
        "wrong_layout": f"declared {in_words(wish.mig or {})}, there is {text(gpu)}{_later(gpu)}",
    }.get(found)
    failure = gpu.get("mig_failure")
    return said if failure is None or said is None else f"{said}; {failure}"


def _pending(gpu: Record) -> str:
    """The mode now and later. ``row`` asks for every card, also one without MIG."""
    if gpu["mig"] is None:
        return ""
    now, later = ("on" if gpu["mig"][when] else "off" for when in ("current", "pending"))
    return f"MIG is {now} and will be {later} after a reset of the GPU or a reboot"


def _later(gpu: Record) -> str:
    return "" if gpu["mig"] is None or gpu["mig"]["current"] == gpu["mig"]["pending"] else "; " + _pending(gpu)


def _busy(gpu: Record) -> str:
    """Instances in use by id, else the number of processes on the whole GPU."""
    layout = gpu["mig_layout"] or {"instances": []}
    used = [
        "{} (instance {}): pid {}".format(one["profile"], one["id"], ", ".join(map(str, one["processes"])))
        for one in layout["instances"]
        if one["processes"]
    ]
    return "; ".join(used) or "{} on the whole GPU".format(gpu["processes"])
