# SPDX-License-Identifier: BSD-2-Clause
"""What each GPU should be set to: the policy file, and how it meets the cards that are there.

Nothing here touches a GPU. ``parse`` and ``load`` give a policy or a typed error, ``resolve`` the
wish for every card, ``refuse`` the error when a wish cannot be met by its card, ``cap_state`` the
word for how a card stands against its wish. Watts outside, whole milliwatts inside.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, Dict, Iterable, Sequence

from . import files, gpu_xid, pcie
from .errors import InputError, StateFileError, SteadyrackError

POLICY_PATH = "/etc/steadyrack/gpu_policy.json"
LAST_PATH = "/var/lib/steadyrack/gpu_policy_last.json"
"""A copy of the last policy that was whole."""
VERSION = 1

# Ways to name a GPU, most specific first: the chip, the board, the slot, the kind, any.
MATCH_KINDS = ("uuid", "serial", "bus_id", "model", "all")
# Those that name a single one.
ONE_GPU = ("uuid", "serial", "bus_id")
# Roles of gpu_spare.py in which nothing may run on a GPU.
CLOSED = ("spare", "failed", "unaccepted")
# Roles whose cap is the spare's: the rack's plan counts no more than the active ones at theirs. A draining one is
# slower for its job's last hours; a feed that trips would end all jobs.
LOW = (*CLOSED, "draining")
# Compute modes that an active GPU may be given; the others are `prohibited`.
COMPUTE_MODES = ("default", "exclusive_process")
# A cap is set in whole watts: the grain of every driver tool and of the cards' own limits.
GRAIN_MW = 1000
# As many NVLinks as any board has (nvml.h, NVML_NVLINK_MAX_LINKS of newer drivers).
MOST_NVLINKS = 36
# Readings within half a grain of the wish are the wish.
TOLERANCE_MW = GRAIN_MW // 2

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# A MIG profile as NVIDIA names it, such as 3g.40gb or 1g.10gb+me; a part of one (1c.3g.40gb) is none.
_MIG_PROFILE = re.compile(r"[1-9]g\.[1-9][0-9]{0,2}gb([+-][a-z]+(\.[a-z]+)?)?")
# More instances than a card of today has places for.
_MOST_INSTANCES = 16
_KEYS = (
    "version", "persistence_mode", "gpu_count", "power_cap", "link_width", "compute_mode", "spares", "xid_actions",
    "link_gen", "nvlink_links", "nvme_link_width", "peer_to_peer", "known_missing", "mig",
)  # fmt: skip
_SPARE_KEYS = ("count", "gpus", "power_cap_w", "environment")
_AGAIN = "correct the inventory and run role gpu_policy"

Record = Dict[str, Any]


@dataclass(frozen=True)
class Match:
    """Which GPUs a rule is for."""

    kind: str
    value: str

    def fits(self, gpu: Record) -> bool:
        """True when the GPU of this record is meant; an unread field never fits."""
        if self.kind == "all":
            return True
        field = {"model": "name"}.get(self.kind, self.kind)
        seen = gpu.get(field)
        return seen is not None and _canonical(self.kind, str(seen)) == self.value

    def __str__(self) -> str:
        return "every GPU" if self.kind == "all" else f"{self.kind} {self.value}"


@dataclass(frozen=True)
class Rule:
    """One wish for the GPUs that match: a cap in watts or in per cent of the default, something of its links, or MIG.

    ``mig``: instances by profile; empty: MIG is to be off.
    """

    match: Match
    cap_w: float | None = None
    cap_percent: float | None = None
    link_width: int | None = None
    mig: dict[str, int] | None = None
    link_gen: int | None = None
    nvlink_links: int | None = None


@dataclass(frozen=True)
class KnownMissing:
    """A slot whose GPU is known to be out until the end of a day (UTC): its shortage is a warning until then."""

    bus_id: str
    until: date
    reason: str

    def holds(self, today: date | None = None) -> bool:
        """Whether the day has not passed."""
        return (today or datetime.now(timezone.utc).date()) <= self.until

    def __str__(self) -> str:
        return f"{self.bus_id} known missing until {self.until.isoformat()} ({self.reason})"


@dataclass(frozen=True)
class Spares:
    """How many GPUs stand by, and which: named ones first, else the highest slots."""

    count: int = 0
    gpus: tuple[Match, ...] = ()
    cap_w: float | None = None
    """Cap of a GPU that is not active; None: the lowest that the card can have."""
    environment: bool = True
    """Whether ``/etc/environment`` has the list, for jobs over plain SSH."""


@dataclass(frozen=True)
class Policy:
    """The whole policy of a node. None means: not said; without ``spares`` no GPU has a role."""

    persistence_mode: bool | None = None
    gpu_count: int | None = None
    power_cap: tuple[Rule, ...] = ()
    link_width: tuple[Rule, ...] = ()
    mig: tuple[Rule, ...] = ()
    compute_mode: str | None = None
    spares: Spares | None = None
    xid_actions: tuple[tuple[int, str], ...] = ()
    link_gen: tuple[Rule, ...] = ()
    nvlink_links: tuple[Rule, ...] = ()
    nvme_link_width: int | None = None
    peer_to_peer: bool | None = None
    known_missing: tuple[KnownMissing, ...] = ()


@dataclass(frozen=True)
class Wish:
    """What the policy wants of one GPU.

    ``problem``: the card cannot do it, so nothing is set anywhere. ``obstacle``: what it needs could
    not be read, so this card is left alone. ``note``: how the wish was fitted to the card.
    """

    cap_mw: int | None = None
    rule: str | None = None
    note: str | None = None
    problem: str | None = None
    obstacle: str | None = None
    persistence: bool | None = None
    link_width: int | None = None
    mig: dict[str, int] | None = None
    compute_mode: str | None = None


# --- the file ----------------------------------------------------------------------------------


def load(path: str = POLICY_PATH) -> Policy | None:
    """The policy in a file, None when there is none. Half a file, nonsense or a newer version: StateFileError."""
    value = files.load_json(path)
    if value is None:
        return None
    try:
        return parse(value, path)
    except InputError as error:
        raise StateFileError(error.thing, error.seen, error.wanted, error.next_step) from None


def load_or_last(root: str) -> tuple[Policy | None, str | None]:
    """The node's policy, and what is wrong with its file; then it is the last one that was whole, if there is one.

    A file that was cut off must not leave every GPU open and uncapped after a reboot. StateFileError where nothing
    whole is left.
    """
    path = files.below(root, POLICY_PATH)
    last = files.below(root, LAST_PATH)
    try:
        policy = load(path)
    except StateFileError as error:
        kept = load(last)
        if kept is None:
            raise
        return kept, error.sentence()
    content = files.read_bytes(path)
    if policy is not None and content is not None and os.geteuid() == 0 and files.read_bytes(last) != content:
        with contextlib.suppress(SteadyrackError):  # a full disk is told by what has to be written
            files.make_directory(os.path.dirname(last))
            files.atomic_write(last, content, 0o644)
    return policy, None


def parse(value: Any, where: str = "policy") -> Policy:
    """A checked policy from plain data; InputError names the place of the first bad value."""
    if not isinstance(value, dict):
        raise InputError(where, type(value).__name__, "a mapping", _AGAIN)
    version = value.get("version")
    if not _is_integer(version) or version != VERSION:
        raise InputError(f"{where}: version", repr(version), VERSION,
                         "bring the node's copy up to date with role node_agent")  # fmt: skip
    for key in value:
        if key not in _KEYS:
            raise InputError(f"{where}: {key}", "unknown key", "one of " + ", ".join(_KEYS), _AGAIN)
    policy = Policy(
        persistence_mode=_yes_or_no(value.get("persistence_mode"), f"{where}: persistence_mode"),
        gpu_count=_count(value.get("gpu_count"), f"{where}: gpu_count"),
        power_cap=_rules(value.get("power_cap"), f"{where}: power_cap", _cap_rule),
        link_width=_rules(value.get("link_width"), f"{where}: link_width", _width_rule),
        mig=_mig_rules(value.get("mig"), f"{where}: mig"),
        compute_mode=_choice(value.get("compute_mode"), f"{where}: compute_mode", COMPUTE_MODES),
        spares=_spares(value.get("spares"), value.get("gpu_count"), f"{where}: spares"),
        xid_actions=_xid_actions(value.get("xid_actions"), f"{where}: xid_actions"),
        link_gen=_rules(value.get("link_gen"), f"{where}: link_gen", _gen_rule),
        nvlink_links=_rules(value.get("nvlink_links"), f"{where}: nvlink_links", _nvlink_rule),
        nvme_link_width=_nvme_width(value.get("nvme_link_width"), f"{where}: nvme_link_width"),
        peer_to_peer=_yes_or_no(value.get("peer_to_peer"), f"{where}: peer_to_peer"),
        known_missing=_known_missing(value.get("known_missing"), f"{where}: known_missing"),
    )
    for conflict in conflicts(policy):
        raise InputError(f"{where}: spares", conflict, "a spare without MIG", _AGAIN)
    return policy


def conflicts(policy: Policy) -> list[str]:
    """Why a policy cannot be kept whole: a spare is closed by compute mode, and a GPU with MIG on has none (C49)."""
    cut = [rule.match for rule in policy.mig if rule.mig]
    if policy.spares is None or not policy.spares.count or not cut:
        return []
    both = [match for match in cut if match in policy.spares.gpus]
    if both:
        return [f"MIG is declared for {match}, which is named as a spare" for match in both]
    free = None if policy.gpu_count is None else policy.gpu_count - len(cut)
    many = any(match.kind in ("all", "model") for match in cut)
    if not many and (free is None or free >= policy.spares.count):
        return []
    listed = ", ".join(map(str, cut))
    return [f"MIG is declared for {listed}, and {policy.spares.count} of the GPUs must stay whole as spare"]


def _yes_or_no(value: Any, where: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InputError(where, repr(value), "true or false", _AGAIN)
    return value


def _count(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if not _is_integer(value) or value < 0:
        raise InputError(where, repr(value), "a number of GPUs", _AGAIN)
    return int(value)


def _choice(value: Any, where: str, words: Sequence[str]) -> str | None:
    if value is not None and value not in words:
        raise InputError(where, repr(value), "one of " + ", ".join(words), _AGAIN)
    return value


def _spares(value: Any, gpu_count: Any, where: str) -> Spares | None:
    """The spares; as many as there are GPUs would leave none to work."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError(where, type(value).__name__, "a mapping", _AGAIN)
    for key in value:
        if key not in _SPARE_KEYS:
            raise InputError(f"{where}: {key}", "unknown key", "one of " + ", ".join(_SPARE_KEYS), _AGAIN)
    count = _count(value.get("count", 0), f"{where}: count") or 0
    if count and _is_integer(gpu_count) and count >= gpu_count:
        raise InputError(
            f"{where}: count", f"{count} of {gpu_count} GPUs", "at least one GPU that is not a spare", _AGAIN
        )
    listed = value.get("gpus") or []
    if not isinstance(listed, list):
        raise InputError(f"{where}: gpus", type(listed).__name__, "a list", _AGAIN)
    matches = tuple(_one_gpu(item, f"{where}: gpus[{place}]") for place, item in enumerate(listed))
    if len(set(matches)) < len(matches):
        raise InputError(f"{where}: gpus", "one GPU twice", "each GPU once", _AGAIN)
    if len(matches) > count:
        raise InputError(f"{where}: gpus", f"{len(matches)} GPUs", f"{count} at most, as count says", _AGAIN)
    cap = value.get("power_cap_w")
    if cap is not None and (not _is_number(cap) or cap <= 0):
        raise InputError(f"{where}: power_cap_w", repr(cap), "watts above 0", _AGAIN)
    environment = value.get("environment", True)
    if not isinstance(environment, bool):
        raise InputError(f"{where}: environment", repr(environment), "true or false", _AGAIN)
    return Spares(count, matches, None if cap is None else float(cap), environment)


def _one_gpu(value: Any, where: str) -> Match:
    """The name of a single GPU."""
    match = _match({"match": value}, where, ())
    if match.kind not in ONE_GPU:
        raise InputError(f"{where}: {match.kind}", "names several GPUs", "one of " + ", ".join(ONE_GPU), _AGAIN)
    return match


def _xid_actions(value: Any, where: str) -> tuple[tuple[int, str], ...]:
    """What the site wants done at an Xid, before the built-in table. JSON has text for keys."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise InputError(where, type(value).__name__, "a mapping of Xid codes to actions", _AGAIN)
    found = []
    for code, word in value.items():
        if not str(code).isdigit():
            raise InputError(f"{where}: {code}", "no Xid code", "a number", _AGAIN)
        found.append((int(code), str(_choice(word, f"{where}: {code}", gpu_xid.ACTIONS))))
    return tuple(sorted(found))


def _rules(value: Any, where: str, one: Any) -> tuple[Rule, ...]:
    """A list of rules; two for the same GPUs would leave the outcome to their order, so they are refused."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InputError(where, type(value).__name__, "a list", _AGAIN)
    rules = tuple(one(item, f"{where}[{place}]") for place, item in enumerate(value))
    seen = set()
    for place, rule in enumerate(rules):
        if rule.match in seen:
            raise InputError(f"{where}[{place}]", f"a second rule for {rule.match}", "one", _AGAIN)
        seen.add(rule.match)
    return rules


def _cap_rule(value: Any, where: str) -> Rule:
    match = _match(value, where, ("power_cap_w", "power_cap_percent"))
    watts, percent = value.get("power_cap_w"), value.get("power_cap_percent")
    if (watts is None) == (percent is None):
        raise InputError(where, "both or neither", "either power_cap_w or power_cap_percent", _AGAIN)
    if watts is not None:
        if not _is_number(watts) or watts <= 0:
            raise InputError(f"{where}: power_cap_w", repr(watts), "watts above 0", _AGAIN)
        return Rule(match, cap_w=float(watts))
    if not _is_number(percent) or not 0 < percent <= 100:
        raise InputError(f"{where}: power_cap_percent", repr(percent), "above 0 and up to 100 per cent of the default",
                         _AGAIN)  # fmt: skip
    return Rule(match, cap_percent=float(percent))


def _width_rule(value: Any, where: str) -> Rule:
    match = _match(value, where, ("link_width",))
    return Rule(match, link_width=_lanes(value.get("link_width"), f"{where}: link_width"))


def _lanes(value: Any, where: str) -> int:
    if not _is_integer(value) or value not in pcie.WIDTHS:
        raise InputError(where, repr(value), "lanes: 1, 2, 4, 8, 12, 16 or 32", _AGAIN)
    return int(value)


def _nvme_width(value: Any, where: str) -> int | None:
    return None if value is None else _lanes(value, where)


def _gen_rule(value: Any, where: str) -> Rule:
    match = _match(value, where, ("link_gen",))
    return Rule(match, link_gen=_span(value.get("link_gen"), f"{where}: link_gen", 1, max(pcie.GENERATIONS.values())))


def _nvlink_rule(value: Any, where: str) -> Rule:
    match = _match(value, where, ("nvlink_links",))
    return Rule(match, nvlink_links=_span(value.get("nvlink_links"), f"{where}: nvlink_links", 0, MOST_NVLINKS))


def _span(value: Any, where: str, low: int, high: int) -> int:
    if not _is_integer(value) or not low <= value <= high:
        raise InputError(where, repr(value), f"a whole number from {low} to {high}", _AGAIN)
    return int(value)


def _known_missing(value: Any, where: str) -> tuple[KnownMissing, ...]:
    """Slots known to be without a GPU, each with a day and a reason: without an end nobody would look again."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InputError(where, type(value).__name__, "a list", _AGAIN)
    found: dict[str, KnownMissing] = {}
    for place, item in enumerate(value):
        entry = _missing_entry(item, f"{where}[{place}]")
        if entry.bus_id in found:
            raise InputError(f"{where}[{place}]", f"a second entry for {entry.bus_id}", "one", _AGAIN)
        found[entry.bus_id] = entry
    return tuple(found.values())


def _missing_entry(value: Any, where: str) -> KnownMissing:
    if not isinstance(value, dict) or set(value) != {"bus_id", "until", "reason"}:
        raise InputError(where, repr(value)[:80], "bus_id, until and reason", _AGAIN)
    if not isinstance(value["reason"], str) or not value["reason"].strip():
        raise InputError(f"{where}: reason", repr(value["reason"]), "text, such as a ticket's number", _AGAIN)
    try:
        until = date.fromisoformat(value["until"])
    except (TypeError, ValueError):
        raise InputError(f"{where}: until", repr(value["until"]), "a date such as 2026-12-31", _AGAIN) from None
    slot = _identity("bus_id", value["bus_id"], f"{where}: bus_id")
    return KnownMissing(slot, until, " ".join(value["reason"].split()))


def _mig_rules(value: Any, where: str) -> tuple[Rule, ...]:
    """The layouts; ``false`` stands for MIG off on every GPU."""
    return (Rule(Match("all", "true"), mig={}),) if value is False else _rules(value, where, _mig_rule)


def _mig_rule(value: Any, where: str) -> Rule:
    match = _match(value, where, ("devices",))
    devices = value.get("devices")
    if not isinstance(devices, dict):
        raise InputError(f"{where}: devices", repr(devices)[:80], "instances by profile, or {} for MIG off", _AGAIN)
    for profile, count in devices.items():
        if not isinstance(profile, str) or not _MIG_PROFILE.fullmatch(profile):
            raise InputError(f"{where}: devices", repr(profile), "a profile such as 1g.10gb, whole GPU instances only",
                             "look at `nvidia-smi mig -lgip`")  # fmt: skip
        if not _is_integer(count) or not 1 <= count <= _MOST_INSTANCES:
            raise InputError(f"{where}: devices: {profile}", repr(count), f"1 to {_MOST_INSTANCES} instances", _AGAIN)
    return Rule(match, mig=dict(devices))


def _match(value: Any, where: str, others: Sequence[str]) -> Match:
    """The match of a rule, checked; an index is refused, its meaning changes when a GPU is lost or added."""
    if not isinstance(value, dict) or not isinstance(value.get("match"), dict) or len(value["match"]) != 1:
        raise InputError(f"{where}: match", repr(value)[:80], "one of " + ", ".join(MATCH_KINDS), _AGAIN)
    for key in value:
        if key != "match" and key not in others:
            raise InputError(f"{where}: {key}", "unknown key", "match and " + " or ".join(others), _AGAIN)
    ((kind, text),) = value["match"].items()
    here = f"{where}: match: {kind}"
    if kind == "index" or (kind == "uuid" and str(text).isdigit()):
        raise InputError(here, repr(text), "a UUID, serial or bus id: the order of GPUs changes between boots",
                         "take the UUID from `steadyrack status`")  # fmt: skip
    if kind not in MATCH_KINDS:
        raise InputError(here, "unknown way to name a GPU", "one of " + ", ".join(MATCH_KINDS), _AGAIN)
    if kind == "all":
        if text is not True:
            raise InputError(here, repr(text), "true", _AGAIN)
        return Match("all", "true")
    return Match(kind, _identity(kind, text, here))


def _identity(kind: str, text: Any, where: str) -> str:
    """A name of a GPU in its comparable form, or InputError that says what form it should have."""
    if kind == "serial" and _is_integer(text):
        text = str(text)  # YAML without quotes makes a number of it
    if not isinstance(text, str) or not text.strip():
        raise InputError(where, repr(text), "text", _AGAIN)
    if kind == "uuid" and not _UUID.fullmatch(text.strip()):
        wanted = "the UUID of the GPU, not of a MIG slice" if text.startswith("MIG-") else "GPU-xxxxxxxx-xxxx-…"
        raise InputError(where, repr(text), wanted, "take it from `steadyrack status`")
    if kind == "bus_id" and not pcie.is_bus_id(text):
        raise InputError(where, repr(text), "a form such as 0000:31:00.0", "take it from `steadyrack status`")
    return _canonical(kind, text)


def _canonical(kind: str, text: str) -> str:
    """One spelling for names that have several. Older drivers leave NVIDIA out of the model."""
    if kind == "bus_id":
        return pcie.bus_id(text)
    if kind == "model":
        return re.sub(r"^nvidia ", "", " ".join(text.split()).lower())
    return text.strip().lower()


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """A number to reckon with: JSON as Python reads it also has NaN and Infinity."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# --- policy meets cards ------------------------------------------------------------------------


def best_rule(rules: Iterable[Rule], gpu: Record) -> Rule | None:
    """The most specific rule that fits the GPU."""
    fitting = [rule for rule in rules if rule.match.fits(gpu)]
    return min(fitting, key=lambda rule: MATCH_KINDS.index(rule.match.kind)) if fitting else None


def resolve(policy: Policy, gpu: Record, role: str | None = None) -> Wish:
    """What the policy wants of the GPU of this NVML record, in its role (gpu_spare.py; None: no roles are kept)."""
    width = best_rule(policy.link_width, gpu)
    cap = best_rule(policy.power_cap, gpu)
    mig = best_rule(policy.mig, gpu)
    others: Record = {
        "persistence": policy.persistence_mode,
        "link_width": width.link_width if width else None,
        "compute_mode": None if _cut(gpu, mig) else _mode(policy, role),
        "mig": mig.mig if mig else None,
    }
    if policy.spares is not None and role in LOW:
        return Wish(rule=f"role {role}", **others, **_closed_cap(policy.spares, cap, gpu["power"]))
    if cap is None:
        return Wish(**others, **_without_rule(policy, gpu))
    return Wish(rule=str(cap.match), **others, **_cap(cap, gpu["power"]))


def _cut(gpu: Record, rule: Rule | None) -> bool:
    """Whether MIG is on, or is to be: such a GPU takes no compute mode (go-nvml#61)."""
    return bool((gpu.get("mig") or {}).get("current") or (rule is not None and rule.mig))


def _mode(policy: Policy, role: str | None) -> str | None:
    """The compute mode: a draining GPU keeps what it has, for its job may want new contexts."""
    if policy.spares is None or role == "draining":
        return None
    return "prohibited" if role in CLOSED else policy.compute_mode or "default"


def _closed_cap(spares: Spares, active: Rule | None, power: Record) -> Record:
    """The cap of a GPU that nothing runs on: a mistake with it then stays inside the budget.

    Never more than it would have when active, as the rack's plan counts it.
    """
    low = milliwatts(power["min_w"])
    if low is None:
        return {"obstacle": "the driver does not tell this card's power limits"}
    if spares.cap_w is None:
        return {"cap_mw": low}
    own = _cap(Rule(Match("all", "true"), cap_w=spares.cap_w), power)
    most = None if active is None else _cap(active, power).get("cap_mw")
    if "cap_mw" in own and most is not None and most < own["cap_mw"]:
        return {"cap_mw": most, "note": f"{spares.cap_w:g} W, no more than when active: {most / 1000:g} W"}
    return own


def _without_rule(policy: Policy, gpu: Record) -> Record:
    """A card that no cap rule fits: wanted only where the policy has no cap rules at all.

    Elsewhere it would draw what it likes beside cards that are capped to fit the feed: a model name that is
    written otherwise than the driver's, or a card that nobody declared.
    """
    if not policy.power_cap or gpu["state"] != "ok":
        return {}
    if gpu.get("name") is None:
        return {"obstacle": "the driver does not tell this card's name, and rules go by it"}
    rules = ", ".join(str(rule.match) for rule in policy.power_cap)
    return {"problem": f"no cap is declared for a {gpu['name']} (declared: {rules})"}


def _cap(rule: Rule, power: Record) -> Record:
    """The wish in milliwatts, checked against the card's own limits."""
    low, high = milliwatts(power["min_w"]), milliwatts(power["max_w"])
    if low is None or high is None:
        return {"obstacle": "the driver does not tell this card's power limits"}
    if rule.cap_w is not None:
        wanted = float(rule.cap_w) * 1000
        said = f"{rule.cap_w:g} W"
    else:
        default = milliwatts(power["default_w"])
        if default is None:
            return {"obstacle": "the driver does not tell the default limit that the per cent are of"}
        wanted = default * float(rule.cap_percent or 0) / 100
        said = f"{rule.cap_percent:g} % of {default / 1000:g} W = {wanted / 1000:g} W"
    return dict(_fitted(wanted, low, high, said, by_percent=rule.cap_w is None))


def _fitted(wanted: float, low: int, high: int, said: str, by_percent: bool) -> Record:
    """Whole watts, downwards so that a power budget holds; raised to the minimum only for lost fractions."""
    cap = int(wanted // GRAIN_MW) * GRAIN_MW
    if by_percent and low - GRAIN_MW < wanted and cap < low <= high:
        return {"cap_mw": low, "note": f"{said}, raised to the card's minimum of {low / 1000:g} W"}
    if not low <= cap <= high:
        return {"problem": f"{said} is outside {low / 1000:g} to {high / 1000:g} W"}
    return {"cap_mw": cap, "note": f"{said}, rounded down to {cap / 1000:g} W" if cap != wanted else None}


def refuse(wishes: Iterable[tuple[Record, Wish]]) -> None:
    """InputError that lists every GPU whose card cannot do what is wanted; before anything is set."""
    bad = [
        f"{label(gpu)}: {wish.problem}" + (f" (rule for {wish.rule})" if wish.rule else "")
        for gpu, wish in wishes
        if wish.problem
    ]
    if bad:
        raise InputError("power cap", "; ".join(bad), "a cap within each card's own limits",
                         "correct the inventory; nothing was changed on any GPU")  # fmt: skip


def unmatched(policy: Policy, gpus: Sequence[Record]) -> tuple[Rule, ...]:
    """Rules for caps and MIG that no GPU answers to: it is missing, or the name is wrong.

    A card that does not answer has no model name either, so models are looked for only where all cards answer.
    """
    kinds = ["uuid", "serial", "bus_id"] + (["model"] if all(gpu["state"] == "ok" for gpu in gpus) else [])
    particular = [rule for rule in (*policy.power_cap, *policy.mig) if rule.match.kind in kinds]
    return tuple(rule for rule in particular if not any(rule.match.fits(gpu) for gpu in gpus))


def cap_state(gpu: Record, wish: Wish) -> str:
    """How the card's limits stand against the wish.

    ok; drift (another writer set something else); lost_state (back at the default, as after a
    reboot or driver reload); capped_elsewhere (our wish stands, yet something enforces less: BMC or
    VBIOS); not_applied (enforced above what was asked for); refused (the card cannot do it, or no rule
    is for it); not_settable; not_declared; unknown; and the GPU's own state when it is not ok.
    """
    if gpu["state"] != "ok":
        return str(gpu["state"])
    if wish.problem is not None:
        return "refused"
    if wish.obstacle is not None:
        return "not_settable"
    if wish.cap_mw is None:
        return "not_declared"
    requested, enforced = milliwatts(gpu["power"]["requested_w"]), milliwatts(gpu["power"]["enforced_w"])
    if requested is None:
        return "unknown"
    if not _near(requested, wish.cap_mw):
        default = milliwatts(gpu["power"]["default_w"])
        return "lost_state" if default is not None and _near(requested, default) else "drift"
    if enforced is None:
        return "unknown"
    if _near(enforced, wish.cap_mw):
        return "ok"
    return "capped_elsewhere" if enforced < wish.cap_mw else "not_applied"


def label(gpu: Record) -> str:
    """A GPU's name for people: UUID and slot, as far as they are known."""
    return " ".join(str(part) for part in (gpu.get("uuid"), gpu.get("bus_id")) if part) or "a GPU without a name"


def milliwatts(watts: float | None) -> int | None:
    """Whole milliwatts, None for a value that was not read."""
    return None if watts is None else round(watts * 1000)


def _near(one: int, other: int) -> bool:
    return abs(one - other) <= TOLERANCE_MW
