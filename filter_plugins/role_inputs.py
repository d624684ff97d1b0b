# SPDX-License-Identifier: Apache-2.0
"""Values of roles' inputs against the roles' own argument specifications, before any host is contacted.

Ansible validates them too, but when a role begins: by then the roles before it have changed hosts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

# What an argument specification cannot say: lowest and highest value, both allowed.
RANGES: dict[str, tuple[float, float]] = {
    "gpu_policy_gpu_count": (0, 64),
    "gpu_policy_link_gen": (1, 6),  # PCIe generations that a node can read (pcie.GENERATIONS)
    "gpu_policy_nvlink_links": (0, 36),  # NVML_NVLINK_MAX_LINKS
    "gpu_policy_spare_power_cap_w": (1, 10_000),
    "gpu_policy_spares": (0, 63),
    "node_agent_boot_wait_s": (0, 3600),  # as `steadyrack gpu apply --wait` takes it
    "node_agent_time_interval_s": (1, 3600),  # as `steadyrack time watch --interval` takes it
    "node_agent_verify_interval_s": (30, 86400),
    "package_mirror_cache_mb": (1, 100_000_000),
    "package_mirror_cache_object_mb": (1, 1_000_000),
    "package_mirror_port": (1, 65535),
    "rack_firewall_confirm_timeout_s": (5, 3600),
    # A healthy relay is tenths of a millisecond off; below, every clock is wrong, and the warning, its third in whole
    # microseconds, becomes 0.
    "time_sync_alarm_ms": (0.1, 3_600_000),
    "time_sync_warn_ms": (0, 3_600_000),
    "time_sync_max_clock_error_ppm": (0.001, 500_000),
    "time_sync_max_distance_s": (0.001, 16),
    "time_sync_max_slew_ppm": (1, 100_000),  # above 100000 the kernel refuses (chrony.conf manual, maxslewrate)
    "time_sync_min_operators": (1, 64),
    "time_sync_orphan_distance_s": (0, 16),
    "time_sync_site_skew_alarm_ms": (0.001, 3_600_000),
    "time_sync_upstream_max_delay_s": (0.000_001, 16),
    "time_sync_wait_s": (0, 3600),
    # minpoll and maxpoll of chrony.conf(5), server directive.
    "time_sync_relay_maxpoll": (-7, 24),
    "time_sync_relay_minpoll": (-7, 24),
    "time_sync_upstream_maxpoll": (-7, 24),
    "time_sync_upstream_minpoll": (-7, 24),
}
# The same for texts, and for each text of a list: the form of the whole, and how a person would say it. What is wrong
# here would be found at 3 a.m., when the alarm is not delivered, or in the middle of a run.
FORMS: dict[str, tuple[re.Pattern[str], str]] = {
    # The rest of these two is in _is_web_address.
    "node_agent_webhook_url": (re.compile(r"((?i:https?)://[!-~]+)?"), "http:// or https:// and a host"),
    "node_agent_webhook_proxy": (re.compile(r"((http://|(?!\w+:/))[!-~]+)?"), "http://host:port"),
    "node_agent_textfile_directory": (re.compile(r"(/[A-Za-z0-9._/+-]*)?"), "an absolute path without blanks"),
    "time_sync_set_clock": (re.compile(r"(?i:ask|true|false|yes|no)"), "true, false or ask"),
    # chronyd's own unit, masked by its own role, would leave the host without a clock; SSH's, without a way in.
    "time_sync_rivals": (
        re.compile(r"(?!(?:chronyd?|sshd?)(?:\.|$))[A-Za-z0-9:_.@-]+"),
        "names of units, not chronyd's own and not SSH's",
    ),
}
BY_GROUP = "put the host into relays or gpu_nodes"
BY_RELAYS = "set rack_site and ansible_host of the relays"
BY_NETWORKS = "set rack_networks, and rack_bmc_networks for BMCs"
BY_OUTSIDE = "set rack_outside_address of the other sites' relays"
# Inputs that the playbooks hand over from the inventory's facts, and where they take them: another value in the
# inventory would go unread by the roles, and be believed by whoever reads the inventory.
HANDED = {
    "gpu_policy_plan_link_width": "set link_width in rack_gpus",
    "node_agent_gpus": BY_GROUP,
    "package_mirror_client_networks": BY_NETWORKS,
    "package_mirror_mode": BY_GROUP,
    "package_mirror_relays": BY_RELAYS,
    "rack_firewall_bmc_networks": "set rack_bmc_networks",
    "rack_firewall_client_networks": BY_NETWORKS,
    "rack_firewall_mode": BY_GROUP,
    "rack_firewall_other_relays": BY_OUTSIDE,
    "rack_firewall_own_addresses": "set ansible_host",
    "rack_firewall_relays": BY_RELAYS,
    "rack_firewall_site_relays": BY_RELAYS,
    "time_sync_client_networks": BY_NETWORKS,
    "time_sync_known_relays": BY_RELAYS,
    "time_sync_mode": BY_GROUP,
    "time_sync_other_sites": BY_OUTSIDE,
    "time_sync_peers": BY_RELAYS,
    "time_sync_relays": BY_RELAYS,
    "time_sync_site": "set rack_site",
    # No role's: playbooks/report.yml has it, above any inventory.
    "report_hours": "give it to playbooks/report.yml with -e",
}
# PCI Express link widths that a graphics card may train to (PCIe base specification).
LINK_WIDTHS = (1, 2, 4, 8, 16)
WEB_HOST = re.compile(r"(?:\[(?P<ip6>[0-9A-Fa-f:.%A-Za-z_-]+)\]|[^\[\]:@]+)(?::(?P<port>[0-9]{1,5}))?")
NUMBERS = ("int", "float")
FORMS_OF_ADDRESSES = ("node_agent_webhook_url", "node_agent_webhook_proxy")
UNEVALUATED = "(cannot be evaluated: "


def role_input_errors(errors: Any, facts: Any, specs: Any) -> dict[str, Any]:
    """``errors`` of ``inventory_errors`` with what is wrong with the values of roles' inputs added to each host.

    ``facts``: host -> variables (``inventory_facts``); ``specs``: role -> its meta/argument_specs.yml. Only what
    is set is looked at: a required input may come from the playbook.
    """
    if not isinstance(errors, Mapping) or not isinstance(specs, Mapping):
        raise AnsibleFilterError(
            "role_input_errors: wants the errors of inventory_errors and the roles' specifications"
        )
    options = {name: option for spec in specs.values() for name, option in _options(spec)}
    hosts = {
        host: [*lines, *_untold(host, lines, _errors_of(facts.get(host, {}), options))]
        for host, lines in errors["hosts"].items()
    }
    return {**errors, "hosts": hosts}


def _untold(host: str, lines: list[str], texts: Iterator[str]) -> Iterator[str]:
    """The errors of inputs of which ``lines`` say nothing yet: one mistake is one line."""
    for text in texts:
        name = text.partition(":")[0]
        if not any(line.startswith(f"{host}: {name}: ") for line in lines):
            yield f"{host}: {text}"


def _options(spec: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    points = spec.get("argument_specs", {}) if isinstance(spec, Mapping) else {}
    for point in points.values():
        for name, option in (point.get("options") or {}).items():
            # A default of null is a role's own word for: not given.
            yield str(name), {**_plain(option), "nullable": option.get("default", "") is None}


def _plain(option: Mapping[str, Any]) -> dict[str, Any]:
    """An option as modules declare it: without prose, and without a default, for only what is set is judged."""
    kept = {key: option[key] for key in ("type", "elements", "choices", "required", "no_log") if key in option}
    if "options" in option:
        kept["options"] = {str(name): _plain(inner) for name, inner in option["options"].items()}
    return kept


def _errors_of(variables: Mapping[str, Any], options: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for name, step in HANDED.items():
        if name in variables:
            yield f"{name}: set, where no playbook reads it; wanted nothing. Next: remove it, {step}"
    for name, option in options.items():
        if name in HANDED:
            continue
        value = variables.get(name)
        if name not in variables or str(value).startswith(UNEVALUATED):
            continue
        if value is None:
            if not option["nullable"]:
                yield f"{name}: is empty; wanted {_wanted(name, option)}. Next: give a value or leave the line out"
            continue
        # Ansible takes true for 1: an alarm at 1 ms, a look each second.
        if isinstance(value, bool) and option.get("type") in NUMBERS:
            yield f"{name}: {value!r} (true or false); wanted {_wanted(name, option)}. Next: correct it"
            continue
        spec = {key: part for key, part in option.items() if key != "nullable"}
        outcome = ArgumentSpecValidator({name: {**spec, "required": False}}).validate({name: value})
        if outcome.error_messages:
            # A secret appears in no message, and neither do the validator's words on it, which quote it.
            if _secret(option):
                yield f"{name}: not of the form that its role's README gives (its value is secret). Next: correct it"
                continue
            # What cannot be converted is said once, in our words: the validator's name a class inside Ansible.
            if any("unable to convert" in text for text in outcome.error_messages):
                found = f"{name}: {_shown(name, value)} ({_kind(value)})"
                yield f"{found}; wanted {_wanted(name, option)}. Next: correct it"
            else:
                texts = outcome.error_messages
                yield from (f"{name}: {_shown(name, value)}: {text}. Next: correct it" for text in texts)
            continue
        yield from _out_of_range(name, outcome.validated_parameters[name])
        yield from _out_of_form(name, outcome.validated_parameters[name], _secret(option))


def _secret(option: Mapping[str, Any]) -> bool:
    inner = option.get("options") or {}
    return bool(option.get("no_log")) or any(_secret(entry) for entry in inner.values())


def _shown(name: str, value: Any) -> str:
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    # A proxy's address may hold a password, wherever in the value it stands.
    if name in FORMS_OF_ADDRESSES and "@" in text:
        return "(with an @: not shown)"
    return text if len(text) <= 80 else text[:77] + "..."


def _kind(value: Any) -> str:
    """What a value is, in a word that the writer of an inventory knows."""
    kinds = ((bool, "true or false"), (str, "text"), (Mapping, "a mapping"), ((list, tuple), "a list"),
             ((int, float), "a number"))  # fmt: skip
    return next((word for kind, word in kinds if isinstance(value, kind)), type(value).__name__)


def _wanted(name: str, option: Mapping[str, Any]) -> str:
    """What an input takes, in words."""
    if name in FORMS:
        return FORMS[name][1]
    if option.get("choices"):
        return "one of " + ", ".join(map(str, option["choices"]))
    kind = str(option.get("type", "str"))
    if kind == "list":
        inner = {"dict": " of mappings", "str": " of texts", "int": " of whole numbers"}
        return "a list" + inner.get(str(option.get("elements")), "")
    words = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "dict": "a mapping",
        "str": "a text",
    }
    span = f" from {_figure(RANGES[name][0])} to {_figure(RANGES[name][1])}" if name in RANGES else ""
    return words.get(kind, "a value") + span


def _figure(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _out_of_range(name: str, value: Any) -> Iterator[str]:
    if name in ("gpu_policy_link_width", "gpu_policy_nvme_link_width") and value not in LINK_WIDTHS:
        yield f"{name}: {value!r}; wanted one of {', '.join(map(str, LINK_WIDTHS))}. Next: correct it"
    if name in RANGES:
        low, high = RANGES[name]
        if not low <= value <= high:  # also what compares with nothing (nan)
            yield f"{name}: {value!r}; wanted {_figure(low)} to {_figure(high)}. Next: correct it"


def _out_of_form(name: str, value: Any, secret: bool) -> Iterator[str]:
    if name not in FORMS:
        return
    form, wanted = FORMS[name]
    for text in map(str, value if isinstance(value, list) else [value]):
        shown = "(secret)" if secret else _shown(name, text)
        if name in FORMS_OF_ADDRESSES and "@" in _authority(text):
            step = "remove the user and the password: nothing here sends them"
            yield f"{name}: {shown}: a user before the host; wanted {wanted}. Next: {step}"
        elif not form.fullmatch(text) or (name in FORMS_OF_ADDRESSES and text and not _is_web_address(name, text)):
            yield f"{name}: {shown}; wanted {wanted}. Next: correct it"


def _authority(text: str) -> str:
    """What stands between the scheme and the path: user, host and port."""
    return re.split(r"[/?#]", text.partition("://")[2] or text, maxsplit=1)[0]


def _is_web_address(name: str, text: str) -> bool:
    """A host, in brackets where it is an IPv6 address, and a port that can be: a proxy's must be given."""
    found = WEB_HOST.fullmatch(_authority(text))
    if found is None:
        return False
    if found["ip6"] is not None:
        try:
            ipaddress.IPv6Address(found["ip6"].replace("%25", "%"))
        except ValueError:
            return False
    if found["port"] is None:
        return name != "node_agent_webhook_proxy"
    return 1 <= int(found["port"]) <= 65535


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"role_input_errors": role_input_errors}
