# SPDX-License-Identifier: Apache-2.0
"""Shape the inputs of role gpu_policy into the policy that its module takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from ansible.errors import AnsibleFilterError

VERSION = 1
NAMES = ("uuid", "serial", "bus_id", "model")
CARDS = NAMES[:3]
SPARE_CAP = "gpu_policy_spare_power_cap_w"
CAPS = ("power_cap_w", "power_cap_percent")
# What an override may want of a card's links: each has rules of its own in the document.
LINKS = ("link_width", "link_gen", "nvlink_links")
AUTO = "auto"
# As the node's own parser takes it: a whole GPU instance, as NVIDIA names it.
MIG_PROFILE = re.compile(r"[1-9]g\.[1-9][0-9]{0,2}gb([+-][a-z]+(\.[a-z]+)?)?")


def watts(value: Any, what: str) -> float | int:
    """A number of watts; text from the command line (-e) counts when it is a number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise AnsibleFilterError(f"{what}: {value!r} is not a number of watts") from None
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise AnsibleFilterError(f"{what}: {value!r} is not a number of watts above 0")
    return int(number) if number == int(number) else number


def base_rules(power_cap_w: Any, plan_cap_w: Any) -> list[dict[str, Any]]:
    """The caps of GPUs without an override: one for all, or with ``auto`` the plan's, which may differ by model.

    There is no fallback: watts are never guessed.
    """
    if power_cap_w != AUTO:
        return [{"match": {"all": True}, "power_cap_w": watts(power_cap_w, "gpu_policy_power_cap_w")}]
    if plan_cap_w is None or plan_cap_w in ("", {}):
        raise AnsibleFilterError(
            "gpu_policy_power_cap_w is auto and there is no plan for this host (gpu_policy_plan_cap_w is empty): "
            "give the cap in watts, or run the preflight, which computes the plan"
        )
    if isinstance(plan_cap_w, Mapping):
        return [
            {"match": {"model": model}, "power_cap_w": watts(cap, f"gpu_policy_plan_cap_w[{model}]")}
            for model, cap in plan_cap_w.items()
        ]
    return [{"match": {"all": True}, "power_cap_w": watts(plan_cap_w, "gpu_policy_plan_cap_w")}]


def replaced(rules: list[dict[str, Any]], override: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules with an override's cap put in the place of the plan's for the same model."""
    names = [model_name(rule["match"]) for rule in override]
    return [
        rule for rule in rules if model_name(rule["match"]) is None or model_name(rule["match"]) not in names
    ] + override


def model_name(match: dict[str, Any]) -> str | None:
    """A model as the node compares it: any case and spacing, with or without the maker."""
    if "model" not in match:
        return None
    return re.sub(r"^nvidia ", "", " ".join(str(match["model"]).split()).lower())


def rules_of(override: dict[str, Any], place: int) -> dict[str, list[dict[str, Any]]]:
    """The rules in one entry of the overrides, by the key of the document that they belong to."""
    where = f"gpu_policy_overrides[{place}]"
    given = {key: value for key, value in override.items() if value is not None}
    if "index" in given:
        raise AnsibleFilterError(
            f"{where}: a GPU has no index here, its order changes; name it by uuid, serial or bus_id"
        )
    unknown = sorted(set(given) - {*NAMES, *CAPS, *LINKS})
    if unknown:
        raise AnsibleFilterError(f"{where}: unknown {', '.join(unknown)}")
    names = [key for key in NAMES if key in given]
    if len(names) != 1:
        raise AnsibleFilterError(f"{where}: names {names or 'nothing'}; wanted exactly one of {', '.join(NAMES)}")
    match = {names[0]: given[names[0]]}
    caps = {key: given[key] for key in CAPS if key in given}
    links = {key: [{"match": match, key: given[key]}] for key in LINKS if key in given}
    if not caps and not links:
        raise AnsibleFilterError(f"{where}: wants nothing; give {', '.join([*CAPS, *LINKS[:-1]])} or {LINKS[-1]}")
    return {**links, **({"power_cap": [{"match": match, **caps}]} if caps else {})}


def of_all(key: str, value: Any) -> list[dict[str, Any]]:
    """A rule for every GPU, none where nothing is given."""
    return [] if value in (None, "") else [{"match": {"all": True}, key: int(value)}]


def missing(entries: Any) -> list[dict[str, str]]:
    """gpu_policy_known_missing with its days as text: YAML makes a date of 2026-12-31 without quotes."""
    found = []
    for entry in entries or []:
        until = entry.get("until")
        found.append({**entry, "until": until.isoformat()[:10] if isinstance(until, date) else until})
    return found


def mig_rule(entry: Any, place: int) -> dict[str, Any]:
    """The rule in one entry of the MIG layouts."""
    where = f"gpu_policy_mig[{place}]"
    if not isinstance(entry, Mapping):
        raise AnsibleFilterError(f"{where}: {entry!r} is no mapping of one of {', '.join(NAMES)} and devices")
    given = {key: value for key, value in entry.items() if value is not None}
    unknown = sorted(set(given) - {*NAMES, "devices"})
    if unknown:
        raise AnsibleFilterError(f"{where}: unknown {', '.join(map(str, unknown))}")
    names = [key for key in NAMES if key in given]
    if len(names) != 1:
        raise AnsibleFilterError(f"{where}: names {names or 'nothing'}; wanted exactly one of {', '.join(NAMES)}")
    devices = given.get("devices")
    if not isinstance(devices, Mapping):
        raise AnsibleFilterError(f"{where}: devices is {devices!r}; wanted instances by profile, {{}} for MIG off")
    for profile, count in devices.items():
        if not MIG_PROFILE.fullmatch(str(profile)):
            raise AnsibleFilterError(f"{where}: {profile!r} is no MIG profile such as 1g.10gb")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise AnsibleFilterError(f"{where}: {profile}: {count!r} is no number of instances")
    return {"match": {names[0]: given[names[0]]}, "devices": {str(name): int(devices[name]) for name in devices}}


def gpu_policy_document(
    overrides: list[dict[str, Any]],
    *,
    power_cap_w: Any,
    plan_cap_w: Any,
    link_width: Any,
    persistence_mode: Any,
    gpu_count: Any,
    plan_link_width: Any = None,
    compute_mode: Any = "default",
    spares: Any = 0,
    spare_gpus: Any = None,
    spare_power_cap_w: Any = None,
    environment: Any = True,
    xid_actions: Any = None,
    link_gen: Any = None,
    nvlink_links: Any = None,
    nvme_link_width: Any = None,
    peer_to_peer: Any = None,
    known_missing: Any = None,
    mig: Any = None,
) -> dict[str, Any]:
    """The policy document, version 1. ``mig`` is left out where nothing is declared."""
    planned = base_rules(power_cap_w, plan_cap_w)
    declared = [
        {"match": {"model": model}, "link_width": int(width)} for model, width in (plan_link_width or {}).items()
    ]
    own: dict[str, list[dict[str, Any]]] = {}
    cut = {"mig": [mig_rule(entry, place) for place, entry in enumerate(mig)]} if mig else {}
    for place, override in enumerate(overrides or []):
        for key, rules in rules_of(override, place).items():
            own.setdefault(key, []).extend(rules)
    return {
        "version": VERSION,
        "persistence_mode": bool(persistence_mode),
        "gpu_count": None if gpu_count in (None, "") else int(gpu_count),
        "power_cap": replaced(planned, own.get("power_cap", [])),
        "link_width": of_all("link_width", link_width) + replaced(declared, own.get("link_width", [])),
        "link_gen": of_all("link_gen", link_gen) + own.get("link_gen", []),
        "nvlink_links": of_all("nvlink_links", nvlink_links) + own.get("nvlink_links", []),
        "nvme_link_width": None if nvme_link_width in (None, "") else int(nvme_link_width),
        "peer_to_peer": None if peer_to_peer in (None, "") else bool(peer_to_peer),
        "known_missing": missing(known_missing),
        "compute_mode": str(compute_mode),
        "spares": {
            "count": int(spares),
            "gpus": [one_gpu(entry, f"gpu_policy_spare_gpus[{place}]") for place, entry in enumerate(spare_gpus or [])],
            "power_cap_w": None if spare_power_cap_w in (None, "") else watts(spare_power_cap_w, SPARE_CAP),
            "environment": bool(environment),
        },
        "xid_actions": {str(code): action for code, action in (xid_actions or {}).items()},
        **cut,
    }


def one_gpu(entry: Any, where: str) -> dict[str, Any]:
    """The name of one card: exactly one of uuid, serial and bus_id."""
    given = {key: value for key, value in entry.items() if value is not None} if isinstance(entry, Mapping) else {}
    if len(given) != 1 or next(iter(given)) not in CARDS:
        raise AnsibleFilterError(f"{where}: {entry!r}; wanted exactly one of {', '.join(CARDS)}")
    return given


class FilterModule:
    """Filters for role gpu_policy."""

    def filters(self) -> dict[str, Any]:
        """Names under which Ansible finds them."""
        return {"gpu_policy_document": gpu_policy_document}
