"""Every GPU that the inventory declares is there, well, capped as planned, kept initialised and on its full link.

Three witnesses: the inventory, the PCI bus (sysfs) and NVML, the last read with ctypes and none of our code. The
policy file is a fourth thing to be judged, not a source of what to expect.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pytest
from acceptance.nodes import Node, UnreadableError, UnsetError
from acceptance.rows import FAIL, NOT_JUDGED, UNKNOWN, Row, judged, row

pytestmark = pytest.mark.groups("gpu_nodes")
Record = Callable[[Iterable[Row]], None]
Gpu = Mapping[str, Any]

POLICY = "/etc/steadyrack/gpu_policy.json"
NAMES = ("uuid", "serial", "bus_id", "model")  # most specific first
GRAIN_MW = 1000  # caps are whole watts; readings within half of that are the same cap
LAST_BITS = 1e-9  # 83 % of 300 is 249 and not a last bit less
AUTO = "auto"
LIST = "CUDA_VISIBLE_DEVICES"
PROHIBITED = 2  # nvml.h, nvmlComputeMode_t

# nvml.h, nvmlClocksEventReasons: hardware slows the card for heat, or because the chassis pulls its power brake.
HW_THERMAL, HW_POWER_BRAKE = 0x40, 0x80
NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13

# nvml.h, nvmlReturn_t: what a card's own answer means for its row.
CODES = {
    3: "not supported",
    4: "no permission",
    9: "driver not loaded",
    13: "function not found",
    15: "GPU is lost",
    16: "reset required",
    17: "operating system error",
    18: "driver and library of two versions",
    999: "unknown error",
}


def reads(node: Node) -> dict[str, Any]:
    """What must be read from a node for these checks."""
    return {"gpus": True, "session": [LIST], "files": {POLICY: {"content": True}}}


# --- what there is -------------------------------------------------------------------------------


def bus_id(text: str) -> str:
    """sysfs form, `0000:31:00.0`, of NVML's `00000000:31:00.0`."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def model_name(text: str) -> str:
    return re.sub(r"^nvidia ", "", " ".join(str(text).split()).lower())


def gpus_of(node: Node) -> list[dict[str, Any]]:
    """NVML's GPUs. UnreadableError when NVML gave no answer for the host as a whole."""
    nvml = node.section("nvml")
    if nvml["state"] != "done":
        raise UnreadableError(f"NVML: {nvml['state']} in {nvml['asking']}")
    if nvml["error"]:
        raise UnreadableError(f"NVML: {nvml['error']}" + (f" ({CODES[nvml['init']]})" if nvml["init"] in CODES else ""))
    return [{**gpu, "bus_id": bus_id(gpu["bus_id"]) if gpu.get("bus_id") else None} for gpu in nvml["gpus"]]


def sick(node: Node, gpus: Iterable[Gpu]) -> dict[str, str]:
    """Subject → why NVML does not answer for it: cards on the bus that NVML cannot name, and cards without a name."""
    gpus = list(gpus)
    silent = [gpu for gpu in gpus if not gpu.get("uuid")]
    named = {gpu["bus_id"] for gpu in gpus if gpu.get("uuid")} | set(known_missing(node, gpus))
    why = ", ".join(sorted({_code(code) for gpu in silent for code in gpu["errors"].values()})) or "not listed"
    found = {
        device["bus_id"]: f"NVML does not answer for it: {why}"
        for device in node.section("pci")
        if device["bus_id"] not in named
    }
    if found or known_missing(node, gpus):
        return found
    return {f"GPU without a name ({place + 1})": f"NVML: {why}" for place, _ in enumerate(silent)}


def known_missing(node: Node, gpus: Iterable[Gpu]) -> dict[str, str]:
    """Slot → until when and why, of gpu_policy_known_missing: where no card answers, and the day has not passed."""
    answering = {gpu["bus_id"] for gpu in gpus if gpu.get("uuid")}
    today = datetime.now(UTC).date()
    return {
        _long_bus_id(entry["bus_id"]): f"known missing until {entry['until']}: {entry['reason']}"
        for entry in node.setting_or("gpu_policy_known_missing", [])
        if date.fromisoformat(str(entry["until"])[:10]) >= today and _long_bus_id(entry["bus_id"]) not in answering
    }


def _code(code: int) -> str:
    return CODES.get(code, f"error {code}")


# --- what there should be ------------------------------------------------------------------------


def declared_count(node: Node) -> int:
    given = node.setting_or("gpu_policy_gpu_count", None)
    return int(given) if given not in (None, "") else sum(int(entry["count"]) for entry in node.setting("rack_gpus"))


def override(node: Node, gpu: Gpu, *keys: str) -> dict[str, Any] | None:
    """The most specific of gpu_policy_overrides that names this GPU and gives one of `keys`."""
    listed = node.setting_or("gpu_policy_overrides", [])
    entries = [entry for entry in listed if any(entry.get(key) is not None for key in keys)]
    for name in NAMES:
        for entry in entries:
            if entry.get(name) is not None and _same(name, entry[name], gpu.get("name" if name == "model" else name)):
                return dict(entry)
    return None


def _same(name: str, wanted: Any, seen: Any) -> bool:
    if seen is None:
        return False
    form: Callable[[str], str] = {"bus_id": _long_bus_id, "model": model_name}.get(
        name, lambda text: text.strip().lower()
    )
    return form(str(wanted)) == form(str(seen))


def _long_bus_id(text: str) -> str:
    return bus_id(text if text.count(":") == 2 else f"0000:{text}")


def declared_entry(node: Node, gpu: Gpu) -> dict[str, Any]:
    """The entry of rack_gpus that the card's model belongs to."""
    for entry in node.setting("rack_gpus"):
        if model_name(entry["model"]) == model_name(gpu.get("name") or ""):
            return dict(entry)
    raise UnsetError(f"rack_gpus of this host has no model {gpu.get('name')!r}")


def expected_cap_w(node: Node, gpu: Gpu) -> float:
    """The cap that the inventory wants: an override, else the host's cap, else (auto) the plan's for the model."""
    own = override(node, gpu, "power_cap_w", "power_cap_percent")
    if own and own.get("power_cap_w") is not None:
        return float(math.floor(float(own["power_cap_w"])))  # a cap is set in whole watts, downwards
    if own:
        if gpu.get("default_mw") is None:
            raise UnreadableError("NVML does not tell the default limit that the per cent are of")
        return percent_of(gpu, float(own["power_cap_percent"]))
    given = node.setting_or("gpu_policy_power_cap_w", AUTO)
    return float(math.floor(float(given))) if given != AUTO else planned_cap_w(node, declared_entry(node, gpu))


def percent_of(gpu: Gpu, percent: float) -> float:
    """Whole watts downwards; what falls below the card's minimum by the lost fraction only is raised to it (C41)."""
    exact, low = gpu["default_mw"] * percent / 100 / GRAIN_MW, (gpu.get("min_mw") or 0) / GRAIN_MW
    cap = float(math.floor(exact + LAST_BITS))
    return low if low - 1 < exact and cap < low else cap


def planned_cap_w(node: Node, entry: Mapping[str, Any]) -> float:
    """From the plan that the playbook handed over; without it (molecule, by hand) from the facts that it is made of."""
    plan = node.variables.get("acceptance_plan_cap_w") or {}
    if entry["model"] in plan:
        return float(plan[entry["model"]])
    if entry.get("power_cap_w") == AUTO:
        raise UnsetError(f"{entry['model']}: power_cap_w is auto; only playbooks/acceptance.yml knows the rack's plan")
    return float(entry.get("power_cap_w") or entry["power_max_w"])


def expected_width(node: Node, gpu: Gpu) -> int:
    own = override(node, gpu, "link_width")
    if own:
        return int(own["link_width"])
    given = declared_entry(node, gpu).get("link_width") if gpu.get("name") else None
    return int(given if given is not None else node.setting("gpu_policy_link_width"))


def given(node: Node) -> list[str] | None:
    """The GPUs that a command over plain SSH is given, as printenv would tell there; None where nobody says any."""
    session = node.section("session")
    if session.get("error"):
        raise UnreadableError(f"{LIST}: {session['error']}")
    text = session.get(LIST)
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def closed(node: Node, gpu: Gpu) -> bool:
    """Whether the GPU is none of those for jobs: by what jobs are given, else by what it lets onto itself."""
    try:
        listed = given(node) if node.setting("gpu_policy_environment") else None
    except UnreadableError:
        listed = None
    return bool(gpu["compute_mode"] == PROHIBITED if listed is None else gpu["uuid"] not in listed)


def wanted_cap_w(node: Node, gpu: Gpu) -> float:
    """The cap of a GPU at work; a closed one is at its lowest, so that a mistake with it stays in the budget."""
    if not closed(node, gpu):
        return expected_cap_w(node, gpu)
    own = node.setting_or("gpu_policy_spare_power_cap_w", None)
    if own not in (None, ""):
        return float(math.floor(float(own)))
    if gpu.get("min_mw") is None:
        raise UnreadableError("NVML does not tell the lowest cap of a GPU that is not for jobs")
    return float(gpu["min_mw"] / GRAIN_MW)


# --- the checks ----------------------------------------------------------------------------------


@pytest.mark.check("gpu.count")
def test_inventory_bus_and_nvml_count_the_same_gpus(node: Node, record: Record) -> None:
    declared, devices = declared_count(node), node.section("pci")
    gone = [device["bus_id"] for device in devices if device["gone"]]
    troubles = [f"{address} has fallen off the bus" for address in gone]
    missing: dict[str, str] = {}
    try:
        missing = known_missing(node, gpus_of(node))
        answering: int | None = sum(1 for gpu in gpus_of(node) if gpu.get("uuid") and not gpu["errors"].get("handle"))
        troubles += [f"{name}: {why}" for name, why in sick(node, gpus_of(node)).items() if name not in gone]
    except UnreadableError as trouble:
        answering = None
        troubles.append(str(trouble))
    fields: dict[str, Any] = {
        "expected": f"{declared} GPUs",
        "source": "inventory, pci, nvml",
        "measured": f"{len(devices) - len(gone)} on the bus, {'unknown' if answering is None else answering} in NVML",
        "reason": "; ".join(troubles) or None,
        "hint": "power the host off and on, then reseat the card; compare nvidia-smi -L with lspci -d 10de:",
    }
    if answering is None and len(devices) - len(gone) == declared and node.section("nvml")["state"] != "done":
        record([row("gpu.count", node.name, UNKNOWN, **fields)])  # a hang says nothing about how many there are
        return
    right = declared == len(devices) - len(gone) == answering
    there = [device for device in devices if not device["gone"] and device["bus_id"] not in missing]
    if not right and missing and declared - len(missing) == len(there) == answering:
        fields["reason"] = "; ".join(f"{slot} {why}" for slot, why in missing.items())
        fields["state"], fields["severity"], right = "known_missing", "warning", True
    record([judged("gpu.count", node.name, right, **fields), *_models(node, answering, len(missing))])


def _models(node: Node, answering: int | None, missing: int) -> list[Row]:
    """Right in number and wrong in kind: a swapped card. As many as are known to be missing may be of any model."""
    if answering is None or len(node.setting("rack_gpus")) == 0:
        return []
    names = [model_name(gpu["name"]) for gpu in gpus_of(node) if gpu.get("name")]
    wanted = {entry["model"]: 0 for entry in node.setting("rack_gpus")}
    for entry in node.setting("rack_gpus"):
        wanted[entry["model"]] += int(entry["count"])
    short = {model: max(0, count - names.count(model_name(model))) for model, count in wanted.items()}
    excused = 0 < sum(short.values()) <= missing
    return [
        judged(
            "gpu.count",
            model,
            names.count(model_name(model)) == count or (excused and short[model] > 0),
            expected=count,
            measured=names.count(model_name(model)),
            unit="GPUs",
            source="nvml",
            reason=None if names.count(model_name(model)) == count else f"found: {', '.join(sorted(names)) or 'none'}",
            hint="a card was lost or swapped: correct rack_gpus, or the card",
        )
        for model, count in wanted.items()
    ]


@pytest.mark.check("gpu.remapped_rows")
def test_no_memory_row_failed_to_be_remapped(node: Node, record: Record) -> None:
    record(_of_each("gpu.remapped_rows", node, _remap_row))


def _of_each(check: str, node: Node, judge: Callable[[Gpu], Row]) -> list[Row]:
    """A row for each card that answers; one that does not is gpu.count's finding, and not another here."""
    found = [judge(gpu) for gpu in gpus_of(node) if gpu.get("uuid")]
    return found or [row(check, node.name, NOT_JUDGED, reason="no GPU answers; see gpu.count", source="nvml")]


def _unread(check: str, gpu: Gpu, field: str) -> Row:
    code = gpu["errors"].get(field, 999)
    absent = code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
    why = f"NVML does not tell: {_code(code)}"
    return row(check, gpu["uuid"], NOT_JUDGED if absent else UNKNOWN, source="nvml", reason=why)


def _remap_row(gpu: Gpu) -> Row:
    if gpu["remap_failure"] is None:
        return _unread("gpu.remapped_rows", gpu, "remapped")
    failed, pending = bool(gpu["remap_failure"]), bool(gpu["remap_pending"])
    return judged(
        "gpu.remapped_rows",
        gpu["uuid"],
        not failed,
        state="failure" if failed else "pending" if pending else "ok",
        severity="warning" if pending and not failed else None,
        source="nvml",
        reason="a row could not be remapped" if failed else "a remapping waits for a reset" if pending else None,
        hint="take the card out of service and replace it",
    )


@pytest.mark.check("gpu.throttle")
def test_neither_power_brake_nor_heat_slows_a_gpu(node: Node, record: Record) -> None:
    record(_of_each("gpu.throttle", node, _throttle_row))


def _throttle_row(gpu: Gpu) -> Row:
    reasons = gpu["event_reasons"]
    if reasons is None:
        return _unread("gpu.throttle", gpu, "event_reasons")
    brake, heat = bool(reasons & HW_POWER_BRAKE), bool(reasons & HW_THERMAL)
    return judged(
        "gpu.throttle",
        gpu["uuid"],
        not brake and not heat,
        state="hw_power_brake" if brake else "hw_thermal" if heat else "ok",
        measured=f"0x{reasons:x}",
        source="nvml",
        reason="the chassis pulls the power brake" if brake else "slowed by hardware for heat" if heat else None,
        hint="look at power supplies, feeds and the card's cable" if brake else "look at fans, filters and inlet air",
    )


@pytest.mark.check("gpu.power_cap")
def test_every_gpu_is_capped_as_planned(node: Node, record: Record) -> None:
    gpus = gpus_of(node)
    named = [gpu for gpu in gpus if gpu.get("uuid")]
    found = [_cap_row(node, gpu) for gpu in named]
    found += [
        row(
            "gpu.power_cap",
            name,
            UNKNOWN,
            severity="critical",
            unit="W",
            source="nvml",
            reason=why,
            hint="it may still draw its last cap: power the host off and on",
        )
        for name, why in sick(node, gpus).items()
    ]
    record([*found, _policy_row(node, named)])


def _cap_row(node: Node, gpu: Gpu) -> Row:
    """Requested and enforced, each on its own: who set it, and what holds."""
    requested, enforced = gpu["requested_mw"], gpu["enforced_mw"]
    fields: dict[str, Any] = {
        "unit": "W",
        "source": "nvml",
        "measured": None if enforced is None else _watts(enforced),
    }
    try:
        wanted = wanted_cap_w(node, gpu)
    except (UnsetError, UnreadableError) as trouble:
        return row("gpu.power_cap", gpu["uuid"], UNKNOWN, reason=str(trouble), **fields)
    fields["expected"] = _watts(wanted * GRAIN_MW)
    if requested is None or enforced is None:
        why = ", ".join(f"{name}: {_code(code)}" for name, code in gpu["errors"].items())
        return row("gpu.power_cap", gpu["uuid"], UNKNOWN, reason=f"NVML does not tell the limits ({why})", **fields)
    said = f"requested {requested / GRAIN_MW:g} W, enforced {enforced / GRAIN_MW:g} W"
    if not _near(requested, wanted):
        state = (
            "lost_state"
            if gpu["default_mw"] is not None and _near(requested, gpu["default_mw"] / GRAIN_MW)
            else "drift"
        )
        return row(
            "gpu.power_cap",
            gpu["uuid"],
            FAIL,
            state=state,
            reason=said,
            **fields,
            hint="steadyrack gpu apply; then look for who set it (nvidia-smi -pl in units, cron, job scripts)",
        )
    if _near(enforced, wanted):
        return judged("gpu.power_cap", gpu["uuid"], True, state="ok", **fields)
    lower = enforced < wanted * GRAIN_MW
    return judged(
        "gpu.power_cap",
        gpu["uuid"],
        lower,
        state="capped_elsewhere" if lower else "not_applied",
        severity="warning" if lower else None,
        reason=said,
        **fields,
        hint="the driver took the cap and does not hold it: look at the kernel log, then reset the GPU",
    )


def _watts(milliwatts: float) -> float:
    """Watts, as a whole number where they are one: 300 and not 300.0 stands in every report."""
    return int(milliwatts / GRAIN_MW) if milliwatts % GRAIN_MW == 0 else milliwatts / GRAIN_MW


def _near(milliwatts: float, watts: float) -> bool:
    return abs(milliwatts - watts * GRAIN_MW) <= GRAIN_MW / 2


def _policy_row(node: Node, gpus: list[dict[str, Any]]) -> Row:
    """The file from which the agent restores the caps at boot: it must say what the inventory says."""
    fields: dict[str, Any] = {"unit": "W", "source": POLICY, "hint": "run the role gpu_policy"}
    policy, trouble = _policy(node)
    if policy is None:
        return row(
            "gpu.power_cap",
            POLICY,
            FAIL,
            measured="absent" if trouble is None else "malformed",
            reason=trouble or "without it no cap survives a reboot",
            **fields,
        )
    if not gpus:
        return row("gpu.power_cap", POLICY, UNKNOWN, reason="no GPU answers to which it could be applied", **fields)
    expected, measured = {}, {}
    for gpu in gpus:
        try:
            expected[gpu["uuid"]] = float(expected_cap_w(node, gpu))
        except (UnsetError, UnreadableError) as trouble:
            return row("gpu.power_cap", POLICY, UNKNOWN, reason=f"{gpu['uuid']}: {trouble}", **fields)
        measured[gpu["uuid"]] = policy_cap_w(policy, gpu)
    wrong = [f"{uuid}: {measured[uuid]} W, wanted {cap:g} W" for uuid, cap in expected.items() if measured[uuid] != cap]
    return judged(
        "gpu.power_cap",
        POLICY,
        not wrong,
        expected=_brief(expected),
        measured=_brief(measured),
        reason="; ".join(wrong) or None,
        **fields,
    )


def _policy(node: Node) -> tuple[dict[str, Any] | None, str | None]:
    file = node.file(POLICY)
    if file is None:
        return None, None
    try:
        policy = json.loads(file["content"])
        entries = [(rule["match"], rule) for rule in policy["power_cap"]]
    except (ValueError, KeyError, TypeError) as error:
        return None, f"{type(error).__name__}: {error}"
    if policy.get("version") != 1 or not all(isinstance(match, dict) for match, _ in entries):
        return None, f"version {policy.get('version')!r}, not 1"
    return policy, None


def policy_cap_w(policy: Mapping[str, Any], gpu: Gpu) -> float | None:
    """What the policy file means for this GPU: the rule that names it most closely."""
    for name in (*NAMES, "all"):
        for rule in policy["power_cap"]:
            value = rule["match"].get(name)
            fits = (
                bool(value)
                if name == "all"
                else value is not None and _same(name, value, gpu.get("name" if name == "model" else name))
            )
            if fits and rule.get("power_cap_w") is not None:
                return float(math.floor(float(rule["power_cap_w"])))
            if fits and gpu.get("default_mw") is not None:
                return float(math.floor(gpu["default_mw"] * float(rule["power_cap_percent"]) / 100 / GRAIN_MW))
    return None


def _brief(caps: Mapping[str, float | None]) -> str:
    """`4 x 300`, in order of watts."""
    values = list(caps.values())
    return ", ".join(
        f"{values.count(value)} x {'none' if value is None else f'{value:g}'}"
        for value in sorted(set(values), key=lambda value: (value is None, value))
    )


@pytest.mark.check("gpu.persistence")
def test_the_driver_keeps_every_gpu_initialised(node: Node, record: Record) -> None:
    wanted, gpus = bool(node.setting("gpu_policy_persistence_mode")), gpus_of(node)
    found = []
    for gpu in (gpu for gpu in gpus if gpu.get("uuid")):
        fields: dict[str, Any] = {"expected": wanted, "source": "nvml"}
        if gpu["persistence"] is None:
            why = f"NVML does not tell: {_code(gpu['errors'].get('persistence', 999))}"
            found.append(row("gpu.persistence", gpu["uuid"], UNKNOWN, reason=why, **fields))
            continue
        measured = bool(gpu["persistence"])
        found.append(
            judged(
                "gpu.persistence",
                gpu["uuid"],
                measured == wanted,
                measured=measured,
                **fields,
                reason=None if measured == wanted else "caps are lost when the last user of the GPU ends",
                hint="systemctl status nvidia-persistenced",
            )
        )
    found += [
        row("gpu.persistence", name, UNKNOWN, source="nvml", reason=why) for name, why in sick(node, gpus).items()
    ]
    record(found or [row("gpu.persistence", node.name, UNKNOWN, reason="NVML lists no GPU", source="nvml")])


@pytest.mark.check("gpu.allow_list")
def test_a_job_over_plain_ssh_is_given_exactly_the_active_gpus(node: Node, record: Record) -> None:
    """Seen from the consumer's side: that some file says so proves nothing (C46). A card that is out is gpu.count's."""
    there = {gpu["uuid"] for gpu in gpus_of(node) if gpu.get("uuid")}
    may = min(declared_count(node) - int(node.setting("gpu_policy_spares")), len(there))
    fields: dict[str, Any] = {"expected": may, "unit": "GPUs", "source": "environment of an SSH command, nvml"}
    if not node.setting("gpu_policy_environment"):
        why = "gpu_policy_environment is false: the scheduler gives GPUs to jobs"
        record([row("gpu.allow_list", node.name, NOT_JUDGED, reason=why, **fields)])
        return
    listed = given(node)
    if listed is None:
        why, state = f"{LIST} is not set: a job takes any GPU, the spare too", "missing"
    else:
        strangers = [name for name in listed if name not in there]
        why = f"jobs are given what is not there: {', '.join(strangers)}" if strangers else ""
        state = "extra" if strangers or len(listed) > may else "short" if len(set(listed)) < may else "ok"
    record(
        [
            judged(
                "gpu.allow_list",
                node.name,
                state == "ok",
                state=state,
                measured=None if listed is None else len(listed),
                reason=why or None,
                **fields,
                hint="steadyrack spare status; steadyrack gpu apply; does sshd use PAM, and PAM pam_env?",
            )
        ]
    )


@pytest.mark.check("gpu.compute_mode")
def test_gpus_for_jobs_are_open_and_all_others_are_closed(node: Node, record: Record) -> None:
    gpus = gpus_of(node)
    listed = given(node) if node.setting("gpu_policy_environment") else None
    named = [gpu for gpu in gpus if gpu.get("uuid")]
    found = [_mode_row(gpu, None if listed is None else gpu["uuid"] in listed) for gpu in named]
    if listed is None:
        spares = int(node.setting("gpu_policy_spares"))
        shut = sum(gpu["compute_mode"] == PROHIBITED for gpu in named)
        found.append(
            judged("gpu.compute_mode", node.name, shut >= spares, expected=spares, measured=shut, unit="closed GPUs")
        )
    found += [
        row("gpu.compute_mode", name, UNKNOWN, source="nvml", reason=why) for name, why in sick(node, gpus).items()
    ]
    record(found)


def _mode_row(gpu: Gpu, for_jobs: bool | None) -> Row:
    """One GPU. ``for_jobs``: whether jobs are given it; None where they are not told over SSH."""
    mode = gpu["compute_mode"]
    fields: dict[str, Any] = {"measured": mode, "source": "nvml"}
    if mode is None:
        why = f"NVML does not tell: {_code(gpu['errors'].get('compute_mode', 999))}"
        return row("gpu.compute_mode", gpu["uuid"], UNKNOWN, reason=why, **fields)
    state = "prohibited" if mode == PROHIBITED else "open"
    good = for_jobs is None or for_jobs == (mode != PROHIBITED)
    return judged(
        "gpu.compute_mode",
        gpu["uuid"],
        good,
        state=state,
        expected=None if for_jobs is None else "open" if for_jobs else "prohibited",
        reason=None if good else "jobs are given it and cannot open it" if for_jobs else "any job can open it",
        **fields,
        hint="steadyrack gpu apply; then look for who set it (nvidia-smi -c in units, cron, job scripts)",
    )


@pytest.mark.check("pcie.width")
def test_every_link_has_its_declared_width_up_to_the_root_port(node: Node, record: Record) -> None:
    try:
        by_slot = {gpu["bus_id"]: gpu for gpu in gpus_of(node) if gpu.get("bus_id")}
    except UnreadableError:
        by_slot = {}  # the bus is a witness of its own
    out = known_missing(node, by_slot.values())
    found = [
        row("pcie.width", device["bus_id"], NOT_JUDGED, source="sysfs", reason=out[device["bus_id"]])
        if device["bus_id"] in out
        else _width_row(node, device, by_slot.get(device["bus_id"]))
        for device in node.section("pci")
    ]
    if not found:
        empty = declared_count(node) == 0
        found = [
            row(
                "pcie.width",
                node.name,
                NOT_JUDGED if empty else UNKNOWN,
                source="sysfs",
                reason="no GPU is declared" if empty else "no GPU on the bus",
            )
        ]
    record(found)


def _width_row(node: Node, device: Mapping[str, Any], gpu: Gpu | None) -> Row:
    """Judged against the declared width: NVML's and the slot's own maximum call a x16 card in a x8 slot perfect."""
    slot, ends = device["bus_id"], device["path_up"]
    widths = [_lanes(end["current_link_width"]) for end in ends]
    fields: dict[str, Any] = {"unit": "lanes", "source": "sysfs, nvml"}
    if device["gone"]:
        return row("pcie.width", slot, UNKNOWN, severity="critical", reason="it has fallen off the bus", **fields)
    wanted = expected_width(node, gpu or {"bus_id": slot})
    fields["expected"] = wanted
    if not ends or None in widths:
        dumb = ", ".join(end["bus_id"] for end, width in zip(ends, widths, strict=True) if width is None) or "all"
        return row("pcie.width", slot, UNKNOWN, reason=f"sysfs does not tell the width at {dumb}", **fields)
    narrowest = min(width for width in widths if width is not None)
    fields["measured"] = narrowest
    told = None if gpu is None else gpu["link_width"]
    if narrowest != wanted:
        return row(
            "pcie.width",
            slot,
            FAIL,
            state=_why_narrow(ends, wanted),
            hint=_HINTS[_why_narrow(ends, wanted)],
            reason=f"x{narrowest} at {ends[widths.index(narrowest)]['bus_id']}",
            **fields,
        )
    if told is not None and told != widths[0]:
        return row(
            "pcie.width",
            slot,
            FAIL,
            state="disagree",
            reason=f"sysfs says x{widths[0]}, NVML x{told}",
            hint="lspci -vv (LnkSta): one of the two is wrong",
            **fields,
        )
    return judged("pcie.width", slot, True, state="ok", **fields)


def _lanes(text: str | None) -> int | None:
    """Lanes; 0, 255 and `Unknown` are how kernels print that they cannot tell."""
    number = int(text) if text and text.isdigit() else 0
    return number if 0 < number < 255 else None


_HINTS = {
    "wide": "more lanes than declared: correct link_width in the inventory",
    "narrow_card": "the card itself has fewer lanes: is it the declared model?",
    "narrow_slot": "the slot has fewer lanes than declared: move the card, or check the BIOS bifurcation",
    "upstream": "a bridge above the slot is narrow: riser, switch or bifurcation",
    "degraded": "trained too narrow: power off, reseat the card, then suspect riser or retimer",
}


def _why_narrow(ends: list[dict[str, Any]], wanted: int) -> str:
    """The card's end, the port above it, or further up; which tells whom to blame."""
    now = [_lanes(end["current_link_width"]) or 0 for end in ends]
    best = [_lanes(end["max_link_width"]) for end in ends]
    if min(now) > wanted:
        return "wide"
    if min(now[:2]) >= wanted:
        return "upstream"
    if best[0] is not None and best[0] < wanted:
        return "narrow_card"
    return "narrow_slot" if best[1:] and best[1] is not None and best[1] < wanted else "degraded"
