# SPDX-License-Identifier: Apache-2.0
"""Values of roles' inputs against the roles' own argument specifications, before any host is contacted.

Ansible validates them too, but when a role begins: by then the roles before it have changed hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

# What an argument specification cannot say: lowest and highest value, both allowed.
RANGES: dict[str, tuple[float, float]] = {
    "gpu_policy_gpu_count": (0, 64),
    "node_agent_boot_wait_s": (0, 3600),  # as `steadyrack gpu apply --wait` takes it
    "node_agent_time_interval_s": (1, 3600),  # as `steadyrack time watch --interval` takes it
    "node_agent_verify_interval_s": (30, 86400),
    "package_mirror_cache_mb": (1, 100_000_000),
    "package_mirror_cache_object_mb": (1, 1_000_000),
    "package_mirror_port": (1, 65535),
    "rack_firewall_confirm_timeout_s": (5, 3600),
    "time_sync_alarm_ms": (0.001, 3_600_000),
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
    "node_agent_webhook_url": (re.compile(r"((?i:https?)://(?![/?#:])[!-~]+)?"), "http:// or https:// and a host"),
    "node_agent_webhook_proxy": (re.compile(r"((http://|(?!\w+:/))(?![/?#:])[!-~]+)?"), "http://host:port"),
    "node_agent_textfile_directory": (re.compile(r"(/[A-Za-z0-9._/+-]*)?"), "an absolute path without blanks"),
    "time_sync_set_clock": (re.compile(r"(?i:ask|true|false|yes|no)"), "true, false or ask"),
    # chronyd's own unit, masked by its own role, would leave the host without a clock; SSH's, without a way in.
    "time_sync_rivals": (
        re.compile(r"(?!(?:chronyd?|sshd?)(?:\.|$))[A-Za-z0-9:_.@-]+"),
        "names of units, not chronyd's own and not SSH's",
    ),
}
# PCI Express link widths that a graphics card may train to (PCIe base specification).
LINK_WIDTHS = (1, 2, 4, 8, 16)
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
        host: [*lines, *(f"{host}: {text}" for text in _errors_of(facts.get(host, {}), options))]
        for host, lines in errors["hosts"].items()
    }
    return {**errors, "hosts": hosts}


def _options(spec: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    points = spec.get("argument_specs", {}) if isinstance(spec, Mapping) else {}
    for point in points.values():
        for name, option in (point.get("options") or {}).items():
            yield str(name), _plain(option)


def _plain(option: Mapping[str, Any]) -> dict[str, Any]:
    """An option as modules declare it: without prose, and without a default, for only what is set is judged."""
    kept = {key: option[key] for key in ("type", "elements", "choices", "required", "no_log") if key in option}
    if "options" in option:
        kept["options"] = {str(name): _plain(inner) for name, inner in option["options"].items()}
    return kept


def _errors_of(variables: Mapping[str, Any], options: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for name, option in options.items():
        value = variables.get(name)
        if value is None or str(value).startswith(UNEVALUATED):
            continue
        outcome = ArgumentSpecValidator({name: {**option, "required": False}}).validate({name: value})
        if outcome.error_messages:
            # A secret appears in no message, and neither do the validator's words on it, which quote it.
            if _secret(option):
                yield f"{name}: not of the form that its role's README gives (its value is secret). Next: correct it"
                continue
            yield from (f"{name}: {value!r}: {text}. Next: correct it" for text in outcome.error_messages)
            continue
        yield from _out_of_range(name, outcome.validated_parameters[name])
        yield from _out_of_form(name, outcome.validated_parameters[name], _secret(option))


def _secret(option: Mapping[str, Any]) -> bool:
    inner = option.get("options") or {}
    return bool(option.get("no_log")) or any(_secret(entry) for entry in inner.values())


def _out_of_range(name: str, value: Any) -> Iterator[str]:
    if name == "gpu_policy_link_width" and value not in LINK_WIDTHS:
        yield f"{name}: {value!r}; wanted one of {', '.join(map(str, LINK_WIDTHS))}. Next: correct it"
    if name in RANGES:
        low, high = RANGES[name]
        if not low <= value <= high:  # also what compares with nothing (nan)
            yield f"{name}: {value!r}; wanted {low:g} to {high:g}. Next: correct it"


def _out_of_form(name: str, value: Any, secret: bool) -> Iterator[str]:
    if name not in FORMS:
        return
    form, wanted = FORMS[name]
    for text in value if isinstance(value, list) else [value]:
        if not form.fullmatch(str(text)):
            yield f"{name}: {'(secret)' if secret else repr(str(text))}; wanted {wanted}. Next: correct it"


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"role_input_errors": role_input_errors}
