"""filter_plugins/role_inputs.py: values of roles' inputs, each wrong one refused once and in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import role_inputs
import yaml

ROLES = Path(__file__).resolve().parents[3] / "roles"
SPECS = {path.parents[1].name: yaml.safe_load(path.read_text()) for path in ROLES.glob("*/meta/argument_specs.yml")}


def found(**variables: Any) -> list[str]:
    """What is said of one host with these variables."""
    errors = {"inventory": [], "hosts": {"gpu-a1": []}}
    return list(role_inputs.role_input_errors(errors, {"gpu-a1": variables}, SPECS)["hosts"]["gpu-a1"])


def only(**variables: Any) -> str:
    (line,) = found(**variables)
    assert line.startswith(f"gpu-a1: {next(iter(variables))}")
    assert "wanted" in line
    assert ". Next: " in line
    assert "<class" not in line
    return line


def test_the_roles_defaults_are_right() -> None:
    for role in SPECS:
        defaults = yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())
        given = {name: value for name, value in defaults.items() if "{{" not in str(value)}
        assert found(**{name: value for name, value in given.items() if name not in role_inputs.HANDED}) == []


def handed_over() -> set[str]:
    """Inputs that a playbook gives to a role, whatever the inventory says."""
    names = set()
    for path in (ROLES.parent / "playbooks").glob("*.yml"):
        for play in yaml.safe_load(path.read_text()):
            for role in play.get("roles", []):
                names |= set(role.get("vars", {}))
    return names


def test_what_the_playbooks_hand_over_is_refused_in_an_inventory() -> None:
    # These two are rack_caps' and rack_inventory's to refuse, with the figure of the plan.
    assert handed_over() - {"gpu_policy_plan_cap_w", "gpu_policy_gpu_count"} == set(role_inputs.HANDED) - {
        "report_hours"
    }


@pytest.mark.parametrize("name", sorted(role_inputs.HANDED))
@pytest.mark.parametrize("value", ["x", None, [], ["10.213.1.21"], True])
def test_a_value_that_no_playbook_reads_is_refused_once(name: str, value: Any) -> None:
    assert "no playbook reads it" in only(**{name: value})


@pytest.mark.parametrize(
    "name",
    ["time_sync_upstreams", "node_agent_webhook_url", "time_sync_alarm_ms", "time_sync_rivals", "time_sync_wait_s",
     "rack_firewall_extra_rules", "time_sync_keys", "node_agent_webhook_body", "time_sync_ratelimit"],
)  # fmt: skip
def test_an_input_without_a_value_is_refused(name: str) -> None:
    line = only(**{name: None})
    assert "is empty" in line
    assert "give a value or leave the line out" in line


def test_an_empty_value_stays_right_where_null_is_the_roles_default() -> None:
    assert found(gpu_policy_gpu_count=None) == []


@pytest.mark.parametrize(
    "name",
    ["time_sync_alarm_ms", "time_sync_warn_ms", "time_sync_site_skew_alarm_ms", "node_agent_time_interval_s"],
)
@pytest.mark.parametrize("value", [True, False])
def test_true_is_no_number(name: str, value: bool) -> None:
    assert f"{value} (true or false); wanted a" in only(**{name: value})


@pytest.mark.parametrize("value", [0.001, 0.0999, 0])
def test_an_alarm_below_what_any_clock_keeps_is_refused(value: float) -> None:
    assert "wanted 0.1 to" in only(time_sync_alarm_ms=value)
    assert round(role_inputs.RANGES["time_sync_alarm_ms"][0] / 3, 3) > 0  # the role's own warning level


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("time_sync_alarm_ms", "thirty", "'thirty' (text); wanted a number from 0.1 to 3600000"),
        ("time_sync_wait_s", "soon", "'soon' (text); wanted a whole number from 0 to 3600"),
        ("time_sync_wait_s", [5], "[5] (a list); wanted a whole number from 0 to 3600"),
        ("time_sync_alarm_ms", {"ms": 5}, "{'ms': 5} (a mapping); wanted a number from"),
        ("time_sync_ratelimit", [1], "[1] (a list); wanted true or false"),
        ("rack_firewall_extra_rules", 5, "wanted a list of mappings"),
        ("rack_firewall_extra_rules", [5], "wanted a list of mappings"),
        ("node_agent_webhook_body", "x", "wanted a mapping"),
    ],
)
def test_a_wrong_type_is_told_in_words(name: str, value: Any, said: str) -> None:
    assert said in only(**{name: value})


@pytest.mark.parametrize(
    "url",
    ["https://user:s3cret@hook.example/x", "https://s3cret@hook.example", "https://hook.example:70000/s3cret",
     "https://hook.example:0/s3cret", "https://hook.example:/s3cret", "https://[2001:db8::1/s3cret",
     "https://2001:db8::1]/s3cret", "https://[s3cret]/", "https:///s3cret", "https://:80/s3cret", "ftp://x/s3cret",
     "https://a:b:1/s3cret"],
)  # fmt: skip
def test_a_webhook_that_nothing_could_reach_is_refused_and_never_shown(url: str) -> None:
    assert "s3cret" not in only(node_agent_webhook_url=url)


@pytest.mark.parametrize(
    "url",
    ["", "https://hook.example/a@b?c=d@e", "HTTP://10.1.0.5:8080", "https://[2001:db8::1]:8443/x", "https://[::1]",
     "https://hook.example?key=1"],
)  # fmt: skip
def test_a_webhook_that_can_be_passes(url: str) -> None:
    assert found(node_agent_webhook_url=url) == []


@pytest.mark.parametrize(
    "proxy",
    ["http://user:s3cret@proxy.example:3128", "user:s3cret@proxy.example:3128", "http://proxy.example", "proxy.example",
     "http://proxy.example:70000", "http://[2001:db8::1:3128", "https://proxy.example:3128", "http://", "http://:3128"],
)  # fmt: skip
def test_a_proxy_is_a_host_and_a_port_and_its_password_is_not_shown(proxy: str) -> None:
    line = only(node_agent_webhook_proxy=proxy)
    assert "wanted http://host:port" in line
    assert "s3cret" not in line


def test_a_proxy_in_a_value_of_another_kind_is_not_shown_either() -> None:
    assert "s3cret" not in only(node_agent_webhook_proxy=["http://user:s3cret@proxy.example:3128"])


@pytest.mark.parametrize("proxy", ["", "http://proxy.example:3128", "10.1.0.21:3128", "http://[2001:db8::1]:3128/"])
def test_a_proxy_that_can_be_passes(proxy: str) -> None:
    assert found(node_agent_webhook_proxy=proxy) == []


def test_a_mig_layout_without_its_instances_or_of_another_kind_is_refused() -> None:
    (line,) = found(gpu_policy_mig=[{"uuid": "GPU-1"}])
    assert "missing required arguments: devices" in line
    assert "gpu_policy_mig" in only(gpu_policy_mig={"uuid": "GPU-1", "devices": {}})
    assert found(gpu_policy_mig=[{"uuid": "GPU-1", "devices": {"1g.10gb": 7}}]) == []
