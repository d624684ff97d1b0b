# SPDX-License-Identifier: Apache-2.0
"""What the power plan knows of a host: its rack facts, and the caps that role gpu_policy will really set.

Where the role's inputs name a cap, that cap is counted and no other: ``gpu_policy_power_cap_w`` beats power_cap_w in
rack_gpus, an override of a model beats both, an override of one card (uuid, serial, bus_id) beats all. Which model
that card is only the node knows, and whether it is there at all: see ``raised``. How many GPUs stand by is the role's
input too (``gpu_policy_spares``), and so is their cap (``gpu_policy_spare_power_cap_w``).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Ansible loads every file here by itself; this is how one finds its neighbour.
sys.path.append(str(Path(__file__).resolve().parent))
from spare_inventory import from_command_line, spare_count

# Defaults of the facts, with the role's input that is one; the same as in inventory/example, the role and docs.
DEFAULTS: dict[str, Any] = {
    "rack_feed_margin_percent": 5,
    "rack_feed_derating": 1.0,
    "rack_psu_efficiency": 1.0,
    "rack_host_base_w": 600,
    "rack_other_w": 0,
    "rack_feeds": 1,
    "rack_feeds_redundant": True,
    "rack_failover_hosts": "one",
    "rack_failover_may_exceed": False,
    "rack_spare_w": "min_cap",
    "gpu_policy_spares": 0,
}
AUTO = "auto"
# At what an idle spare counts, beside watts: role gpu_policy holds it at its minimum, or at the cap it is told.
SPARE_WORDS = ("min_cap", "cap")
SPARE_CAP = "gpu_policy_spare_power_cap_w"
FAILOVER_WORDS = ("one", "all")
# Names of one card, as in gpu_policy_overrides; beside them a model may be named.
CARD_NAMES = ("uuid", "serial", "bus_id")


class Gpus(NamedTuple):
    """GPUs of one model in one host."""

    model: str
    number: int
    power_max_w: float
    power_min_w: float
    spare_w: float | None  # what an idle one counts at; None: at its cap, like an active one
    cap_w: float | None  # the operator's cap; None: none given
    auto: bool  # the operator leaves the cap to the plan
    pinned: str = ""  # the input of role gpu_policy that sets the cap, whatever the plan says

    @property
    def peak_w(self) -> float:
        """The cap the operator asked for; without one, the most the card can draw."""
        return self.power_max_w if self.cap_w is None else self.cap_w

    def idles_at(self, cap_w: float) -> float:
        """What an idle spare counts at, never above its cap."""
        return cap_w if self.spare_w is None else min(self.spare_w, cap_w)


class Override(NamedTuple):
    """A cap for a model or for one card, from gpu_policy_overrides."""

    model: str | None  # None: one card
    name: str
    cap_w: float | None
    percent: float | None  # of the card's default, which is at most its maximum

    def cap_of(self, entry: Gpus) -> float | None:
        """The most it may be on a card of this kind; None where the card would refuse it, and the node with it."""
        if self.cap_w is not None:
            return self.cap_w if entry.power_min_w <= self.cap_w <= entry.power_max_w else None
        # The node rounds down to whole watts, and up to the card's minimum.
        return max(math.floor(entry.power_max_w * (self.percent or 0) / 100 + 1e-9), entry.power_min_w)

    @property
    def wish(self) -> str:
        return f"{self.cap_w:g} W" if self.cap_w is not None else f"{self.percent:g} %"


class Host(NamedTuple):
    """What the plan needs of one host."""

    name: str
    base_w: float
    efficiency: float
    active: int
    gpus: tuple[Gpus, ...]
    cards: tuple[Override, ...] = ()

    @property
    def total(self) -> int:
        return sum(entry.number for entry in self.gpus)


class Feed(NamedTuple):
    """What feeds a rack, on which all its hosts agree, and what may happen on it."""

    limit_w: float  # of one feed
    number: int
    redundant: bool
    derating: float
    margin_percent: float
    other_w: float
    failover_hosts: str
    may_exceed: bool

    @property
    def bare_w(self) -> float:
        """All that there is: one feed where any may be lost, the sum where the power supplies share the load."""
        return self.limit_w if self.redundant else self.limit_w * self.number

    @property
    def usable_w(self) -> float:
        return self.bare_w * self.derating * (1 - self.margin_percent / 100)

    @property
    def moment_w(self) -> float:
        """What may be drawn while a spare has taken over and the lost card still draws."""
        return self.bare_w if self.may_exceed else self.usable_w


# The facts that make a Feed, in its order.
FEED_FACTS = (
    "rack_feed_limit_w", "rack_feeds", "rack_feeds_redundant", "rack_feed_derating", "rack_feed_margin_percent",
    "rack_other_w", "rack_failover_hosts", "rack_failover_may_exceed",
)  # fmt: skip

# The cap under which a GPU is calculated.
Caps = Callable[[Gpus], float]


class BadFactError(ValueError):
    """A rack fact that cannot be calculated with; the text names host and fact."""


# --- reading the facts ---------------------------------------------------------------------------


def number(host: str, facts: Mapping[str, Any], key: str, span: tuple[float, float], note: str = "") -> float:
    low, high = span
    value = facts.get(key, DEFAULTS.get(key))
    where = f"{host}: {note}{key}"
    if value is None:
        raise BadFactError(f"{where} is not set; it needs a number")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadFactError(f"{where} is {value!r}; it needs a number")
    if not low <= value <= high:
        raise BadFactError(f"{where} is {value!r}; it must lie between {low:g} and {high:g}")
    return value


def _word(host: str, facts: Mapping[str, Any], key: str, words: tuple[Any, ...]) -> Any:
    value = facts.get(key, DEFAULTS[key])
    # 1 is equal to True.
    if not isinstance(value, type(words[0])) or value not in words:
        raise BadFactError(f"{host}: {key} is {value!r}; it needs {' or '.join(str(word).lower() for word in words)}")
    return value


def _whole(host: str, facts: Mapping[str, Any], key: str, span: tuple[float, float]) -> int:
    value = number(host, facts, key, span)
    if value != int(value):
        raise BadFactError(f"{host}: {key} is {value!r}; it needs a whole number")
    return int(value)


def _gpus(host: str, entry: Any, position: int, spare: Any) -> Gpus:
    note = f"rack_gpus[{position}]."
    if not isinstance(entry, Mapping):
        raise BadFactError(
            f"{host}: rack_gpus[{position}] is {entry!r}; it needs model, count, power_max_w, power_min_w"
        )
    model = entry.get("model")
    if not isinstance(model, str) or not model.strip():
        raise BadFactError(f"{host}: {note}model is {model!r}; it needs the model's name")
    count = number(host, entry, "count", (1, 64), note)
    if count != int(count):
        raise BadFactError(f"{host}: {note}count is {count!r}; it needs a whole number")
    high = number(host, entry, "power_max_w", (1, 10000), note)
    low = number(host, entry, "power_min_w", (1, high), note)
    cap = entry.get("power_cap_w")
    given = None
    if cap is not None and cap != AUTO:
        given = number(host, entry, "power_cap_w", (low, high), note)
    idle = {"min_cap": low, "cap": None}.get(spare, spare)
    if entry.get("idle_w") is not None:
        idle = number(host, entry, "idle_w", (0, high), note)
    return Gpus(str(model), int(count), high, low, idle, given, cap == AUTO)


def _spare(host: str, facts: Mapping[str, Any]) -> Any:
    """rack_spare_w: a word of SPARE_WORDS or watts, as measured on an idle card; min_cap is the spare's own cap."""
    value, cap = facts.get("rack_spare_w", DEFAULTS["rack_spare_w"]), _spare_cap(host, facts)
    if value == "min_cap" and cap is not None:
        return cap
    if isinstance(value, str) and value in SPARE_WORDS:
        return str(value)
    if isinstance(value, str):
        raise BadFactError(f"{host}: rack_spare_w is {value!r}; it needs {', '.join(SPARE_WORDS)} or watts")
    return number(host, facts, "rack_spare_w", (0, 10000))


def _spare_cap(host: str, facts: Mapping[str, Any]) -> float | None:
    """gpu_policy_spare_power_cap_w in watts; None where the role takes the minimum of each card."""
    value = facts.get(SPARE_CAP)
    return None if value is None else number(host, {SPARE_CAP: from_command_line(value)}, SPARE_CAP, (1, 10000))


def _spares(host: str, facts: Mapping[str, Any], gpus: tuple[Gpus, ...]) -> int:
    """How many GPUs stand by: one is left to work, and each GPU must take the cap that a spare is told."""
    value, total = facts.get("gpu_policy_spares", DEFAULTS["gpu_policy_spares"]), sum(entry.number for entry in gpus)
    count, cap = spare_count(value), _spare_cap(host, facts)
    if count is None:
        raise BadFactError(f"{host}: gpu_policy_spares is {value!r}; it needs a whole number")
    for entry in gpus if cap is not None else ():
        number(host, {SPARE_CAP: cap}, SPARE_CAP, (entry.power_min_w, entry.power_max_w))
    return int(number(host, {"gpu_policy_spares": count}, "gpu_policy_spares", (0, max(total - 1, 0))))


def same_model(one: str, other: str) -> bool:
    """As the node compares models: any case and spacing, with or without the maker."""
    first, second = (re.sub(r"^nvidia ", "", " ".join(name.split()).lower()) for name in (one, other))
    return first == second


def _overrides(host: str, listed: Any) -> list[Override]:
    if listed is None:
        return []
    if not isinstance(listed, (list, tuple)):
        raise BadFactError(f"{host}: gpu_policy_overrides is {listed!r}; it needs a list")
    found = []
    for place, entry in enumerate(listed):
        note = f"gpu_policy_overrides[{place}]"
        given = {key: entry[key] for key in entry if entry[key] is not None} if isinstance(entry, Mapping) else {}
        names = [key for key in (*CARD_NAMES, "model") if key in given]
        if len(names) != 1:
            raise BadFactError(f"{host}: {note} is {entry!r}; it needs exactly one of uuid, serial, bus_id, model")
        watts_given, percent_given = "power_cap_w" in given, "power_cap_percent" in given
        if watts_given and percent_given:
            raise BadFactError(f"{host}: {note} has power_cap_w and power_cap_percent; it needs one of them")
        if not watts_given and not percent_given:
            continue  # a link width alone
        cap = number(host, given, "power_cap_w", (1, 10000), note + ".") if watts_given else None
        percent = number(host, given, "power_cap_percent", (0.01, 100), note + ".") if percent_given else None
        name = str(given[names[0]])
        found.append(Override(name if names[0] == "model" else None, name, cap, percent))
    return found


def _policy_cap(host: str, facts: Mapping[str, Any]) -> float | None:
    """gpu_policy_power_cap_w in watts, None for auto."""
    if facts.get("gpu_policy_plan_cap_w") not in (None, "", {}):
        raise BadFactError(
            f"{host}: gpu_policy_plan_cap_w is {facts['gpu_policy_plan_cap_w']!r}; it is what the plan hands over: "
            "give watts in gpu_policy_power_cap_w"
        )
    value = facts.get("gpu_policy_power_cap_w")
    if value is None or value == AUTO:
        return None
    told = {"gpu_policy_power_cap_w": from_command_line(value)}
    return number(host, told, "gpu_policy_power_cap_w", (1, 10000))


def _pinned(host: str, entry: Gpus, cap: float | None, models: list[Override]) -> Gpus:
    """The entry under the cap that role gpu_policy is told, if it is told one."""
    own = [one for one in models if one.model is not None and same_model(one.model, entry.model)]
    wanted, source = (cap, "gpu_policy_power_cap_w") if not own else (own[0].cap_of(entry), f"override {own[0].wish}")
    if own and wanted is None:
        wanted = own[0].cap_w
    if wanted is None:
        return entry
    if not entry.power_min_w <= wanted <= entry.power_max_w:
        raise BadFactError(
            f"{host}: {source}: {wanted:g} W for {entry.model}; "
            f"it must lie between {entry.power_min_w:g} and {entry.power_max_w:g}"
        )
    if entry.cap_w is not None and entry.cap_w != wanted:
        source += f"; not the {entry.cap_w:g} of rack_gpus"
    return entry._replace(cap_w=wanted, auto=False, pinned=source)


def _policy(host: str, facts: Mapping[str, Any], gpus: tuple[Gpus, ...]) -> tuple[tuple[Gpus, ...], list[Override]]:
    """The host's GPUs as role gpu_policy will cap them, and the overrides of single cards."""
    cap, overrides = _policy_cap(host, facts), _overrides(host, facts.get("gpu_policy_overrides"))
    cards = [one for one in overrides if one.model is None]
    for one in cards:
        if gpus and all(one.cap_of(entry) is None for entry in gpus):
            raise BadFactError(
                f"{host}: override {one.name}: {one.wish} is outside the range of every GPU of this host"
            )
    return tuple(_pinned(host, entry, cap, overrides) for entry in gpus), cards


def read_host(facts: Mapping[str, Any]) -> Host:
    """A host as the plan counts it: every spare is idle, for role gpu_policy keeps it so."""
    name = str(facts.get("host") or "?")
    listed = facts.get("rack_gpus")
    if not isinstance(listed, (list, tuple)):
        raise BadFactError(f"{name}: rack_gpus is {listed!r}; it needs a list, empty for a host without GPUs")
    spare = _spare(name, facts)
    gpus = tuple(_gpus(name, entry, position, spare) for position, entry in enumerate(listed))
    base = number(name, facts, "rack_host_base_w", (0, 100000))
    efficiency = number(name, facts, "rack_psu_efficiency", (0.5, 1))
    active = sum(entry.number for entry in gpus) - _spares(name, facts, gpus)
    gpus, cards = _policy(name, facts, gpus)
    return Host(name, base, efficiency, active, gpus, tuple(cards))


def _feed(name: str, facts: Mapping[str, Any]) -> Feed:
    return Feed(
        limit_w=number(name, facts, "rack_feed_limit_w", (1, 1000000)),
        number=_whole(name, facts, "rack_feeds", (1, 8)),
        redundant=_word(name, facts, "rack_feeds_redundant", (True, False)),
        derating=number(name, facts, "rack_feed_derating", (0.01, 1)),
        margin_percent=number(name, facts, "rack_feed_margin_percent", (0, 99)),
        other_w=number(name, facts, "rack_other_w", (0, 1000000)),
        failover_hosts=_word(name, facts, "rack_failover_hosts", FAILOVER_WORDS),
        may_exceed=_word(name, facts, "rack_failover_may_exceed", (True, False)),
    )


def read_feed(names: list[str], members: list[Mapping[str, Any]]) -> Feed:
    """What feeds the rack, on which all its hosts must agree."""
    feeds = [_feed(name, facts) for name, facts in zip(names, members, strict=True)]
    for name, feed in zip(names, feeds, strict=True):
        differ = [fact for fact, one, other in zip(FEED_FACTS, feed, feeds[0], strict=True) if one != other]
        if differ:
            raise BadFactError(f"{name} and {names[0]} are in one rack but differ in its feed: {', '.join(differ)}")
    return feeds[0]


# --- overrides of single cards --------------------------------------------------------------------


def raised(host: Host, caps: Caps) -> list[tuple[Override, int]]:
    """At worst, which kind of GPU (position in host.gpus) each override of one card raises.

    An override that would lower a cap is not counted on: after the card was swapped nothing answers to the name,
    and the new card has the cap of all others. Two names may mean one card, which then counts as two.
    """

    @cache
    def worst(place: int, left: tuple[int, ...]) -> tuple[float, tuple[tuple[int, int], ...]]:
        if place == len(host.cards):
            return 0.0, ()
        best = worst(place + 1, left)
        for kind, number_left in enumerate(left):
            gain = gain_w(host.cards[place], host.gpus[kind], caps)
            if number_left and gain > 0:
                rest, chosen = worst(place + 1, (*left[:kind], number_left - 1, *left[kind + 1 :]))
                best = max(best, (gain + rest, ((place, kind), *chosen)))
        return best

    if not host.cards:
        return []
    return [(host.cards[place], kind) for place, kind in worst(0, tuple(entry.number for entry in host.gpus))[1]]


def gain_w(override: Override, entry: Gpus, caps: Caps) -> float:
    """How far one card of this kind rises above the others; 0 where the override lowers it or does not suit it."""
    return max(0.0, (override.cap_of(entry) or 0.0) - caps(entry))


def rack_hosts(facts: Any, hosts: Any) -> list[dict[str, Any]]:
    """The list that ``rack_power_plan`` takes: of host -> facts (``inventory_facts``), those hosts that draw power."""
    return [{**facts.get(host, {}), "host": str(host)} for host in hosts or []]


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"rack_hosts": rack_hosts}
