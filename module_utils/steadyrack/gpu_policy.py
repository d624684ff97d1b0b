# SPDX-License-Identifier: BSD-2-Clause
"""What each GPU should be set to: the policy file, and how it meets the cards that are there.

Nothing here touches a GPU. ``parse`` and ``load`` give a policy or a typed error, ``resolve`` the
wish for every card, ``refuse`` the error when a wish cannot be met by its card, ``cap_state`` the
word for how a card stands against its wish. Watts outside, whole milliwatts inside.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Sequence

from . import files, pcie
from .errors import InputError, StateFileError

POLICY_PATH = "/etc/steadyrack/gpu_policy.json"
VERSION = 1

# Ways to name a GPU, most specific first: the chip, the board, the slot, the kind, any.
MATCH_KINDS = ("uuid", "serial", "bus_id", "model", "all")
# A cap is set in whole watts: the grain of every driver tool and of the cards' own limits.
GRAIN_MW = 1000
# Readings within half a grain of the wish are the wish.
TOLERANCE_MW = GRAIN_MW // 2

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# A MIG profile as NVIDIA names it, such as 3g.40gb or 1g.10gb+me; a part of one (1c.3g.40gb) is none.
_MIG_PROFILE = re.compile(r"[1-9]g\.[1-9][0-9]{0,2}gb([+-][a-z]+(\.[a-z]+)?)?")
# More instances than a card of today has places for.
_MOST_INSTANCES = 16
_KEYS = ("version", "persistence_mode", "gpu_count", "power_cap", "link_width", "mig")
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
    """One wish for the GPUs that match: a cap in watts, a cap in per cent of the default, a link width, or MIG.

    ``mig``: instances by profile; empty: MIG is to be off.
    """

    match: Match
    cap_w: float | None = None
    cap_percent: float | None = None
    link_width: int | None = None
    mig: dict[str, int] | None = None


@dataclass(frozen=True)
class Policy:
    """The whole policy of a node. None means: not said."""

    persistence_mode: bool | None = None
    gpu_count: int | None = None
    power_cap: tuple[Rule, ...] = ()
    link_width: tuple[Rule, ...] = ()
    mig: tuple[Rule, ...] = ()


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
    return Policy(
        persistence_mode=_persistence(value.get("persistence_mode"), f"{where}: persistence_mode"),
        gpu_count=_count(value.get("gpu_count"), f"{where}: gpu_count"),
        power_cap=_rules(value.get("power_cap"), f"{where}: power_cap", _cap_rule),
        link_width=_rules(value.get("link_width"), f"{where}: link_width", _width_rule),
        mig=_mig_rules(value.get("mig"), f"{where}: mig"),
    )


def _persistence(value: Any, where: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InputError(where, repr(value), "true or false", _AGAIN)
    return value


def _count(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if not _is_integer(value) or value < 0:
        raise InputError(where, repr(value), "a number of GPUs", _AGAIN)
    return int(value)


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
    lanes = value.get("link_width")
    if not _is_integer(lanes) or lanes not in pcie.WIDTHS:
        raise InputError(f"{where}: link_width", repr(lanes), "lanes: 1, 2, 4, 8, 12, 16 or 32", _AGAIN)
    return Rule(match, link_width=int(lanes))


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


def resolve(policy: Policy, gpu: Record) -> Wish:
    """What the policy wants of the GPU of this NVML record."""
    width = best_rule(policy.link_width, gpu)
    cap = best_rule(policy.power_cap, gpu)
    mig = best_rule(policy.mig, gpu)
    others: Record = {
        "persistence": policy.persistence_mode, "link_width": width.link_width if width else None,
        "mig": mig.mig if mig else None,
    }  # fmt: skip
    if cap is None:
        return Wish(**others, **_without_rule(policy, gpu))
    return Wish(rule=str(cap.match), **others, **_cap(cap, gpu["power"]))


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
