"""playbooks/preflight.yml as it runs: no host is contacted, whatever --limit says, the same in check mode.

And that playbooks/gpu.yml, run alone, refuses the same racks before it contacts a host of them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import ansible_runner
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
GPUS = [{"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150}]


def inventory(nodes: int = 2, **changes: dict[str, Any]) -> dict[str, Any]:
    """Rack a1 of a relay and ``nodes`` nodes, rack b1 of one node; ``changes`` are host variables (_ for -)."""
    facts = {"rack_site": "Süd", "rack_feed_limit_w": 4000, "rack_gpus": GPUS, "rack_networks": ["192.0.2.0/24"]}
    names = [f"gpu-a{number}" for number in range(1, nodes + 1)]
    # Addresses for documentation: whoever tried to contact them would wait for long and fail.
    hosts = {
        name: {"ansible_host": f"192.0.2.{10 + number}"} for number, name in enumerate([*names, "gpu-b1", "relay-a1"])
    }
    for name, variables in changes.items():
        hosts[name.replace("_", "-")].update(variables)
    return {
        "all": {
            "vars": facts,
            "children": {
                "relays": {"hosts": {"relay-a1": hosts["relay-a1"]}},
                "gpu_nodes": {"hosts": {name: hosts[name] for name in [*names, "gpu-b1"]}},
                "rack_a1": {"vars": {"rack_name": "机架 1"}, "hosts": dict.fromkeys(["relay-a1", *names])},
                "rack_b1": {"vars": {"rack_name": "b1"}, "hosts": {"gpu-b1": None}},
            },
        }
    }


def preflight(tmp_path: Path, hosts: dict[str, Any], *arguments: str, playbook: str = "preflight") -> dict[str, Any]:
    """One run by ansible-runner: its exit status, results per host, hosts refused, and the lines shown last."""
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts, allow_unicode=True), encoding="utf-8")
    run = ansible_runner.run(
        private_data_dir=str(tmp_path),
        inventory=str(tmp_path / "hosts.yml"),
        playbook=str(REPOSITORY / "playbooks" / f"{playbook}.yml"),
        cmdline=" ".join(arguments) or None,
        envvars={"ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORKS": "4"},
        quiet=True,
    )
    kinds = ("runner_on_ok", "runner_on_failed", "runner_on_skipped", "runner_on_unreachable")
    results = [event for event in run.events if event["event"] in kinds]
    counts = Counter(event["event_data"]["host"] for event in results)
    shown = {event["event_data"]["host"]: event["event_data"]["res"].get("msg", []) for event in results}
    failed = sorted(event["event_data"]["host"] for event in results if event["event"] != "runner_on_ok")
    return {"rc": run.rc, "shown": shown, "counts": counts, "failed": failed}


@pytest.fixture(params=[[], ["--check"]], ids=["run", "check"])
def mode(request: pytest.FixtureRequest) -> list[str]:
    """It reads and refuses in check mode as it does otherwise."""
    return list(request.param)


def test_a_rack_that_fits_passes_with_at_most_two_results_a_host(tmp_path: Path, mode: list[str]) -> None:
    run = preflight(tmp_path, inventory(), *mode)
    assert run["rc"] == 0
    assert run["failed"] == []
    assert max(run["counts"].values()) <= 2
    assert "3600 W of 3800 W: fits" in run["shown"]["gpu-a1"][0]


def test_a_third_node_is_refused_in_watts_also_with_a_limit_to_it(tmp_path: Path, mode: list[str]) -> None:
    run = preflight(tmp_path, inventory(3), "--limit", "gpu-a3", *mode)
    assert run["rc"] != 0
    assert run["failed"] == ["gpu-a3"]
    assert any("1800 + 1800 + 1800 = 5400 W of 3800 W: over by 1600 W" in line for line in run["shown"]["gpu-a3"])
    assert any("机架 1 at Süd" in line for line in run["shown"]["gpu-a3"])


def test_the_other_rack_goes_on(tmp_path: Path) -> None:
    run = preflight(tmp_path, inventory(3))
    assert run["failed"] == ["gpu-a1", "gpu-a2", "gpu-a3", "relay-a1"]


AUTO_AT_160 = [{**GPUS[0], "power_cap_w": 160}]
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def test_the_caps_that_role_gpu_policy_will_set_are_the_ones_counted(tmp_path: Path) -> None:
    """Three hosts fit at the 160 W of rack_gpus, and not at the 300 W that one of them would really get."""
    hosts = inventory(3, gpu_a3={"gpu_policy_power_cap_w": 300})
    hosts["all"]["vars"]["rack_gpus"] = AUTO_AT_160
    run = preflight(tmp_path, hosts)
    assert run["failed"] == ["gpu-a1", "gpu-a2", "gpu-a3", "relay-a1"]
    said = "gpu_policy_power_cap_w; not the 160 of rack_gpus"
    assert f"gpu-a3: host 600 + 4 x 300 (NVIDIA A100 80GB PCIe; {said}) = 1800 W" in run["shown"]["gpu-a3"]


@pytest.mark.parametrize("given", ["160", "'{\"gpu_policy_power_cap_w\": 160}'"])
def test_a_cap_on_the_command_line_makes_room(tmp_path: Path, given: str) -> None:
    cap = given if given.startswith("'") else f"gpu_policy_power_cap_w={given}"
    run = preflight(tmp_path, inventory(3), "-e", cap)
    assert run["failed"] == []
    assert "3720 W of 3800 W: fits" in run["shown"]["gpu-a1"][0]


def test_an_override_of_one_card_is_counted(tmp_path: Path) -> None:
    hosts = inventory(3, gpu_a3={"gpu_policy_overrides": [{"uuid": UUID, "power_cap_w": 300}]})
    hosts["all"]["vars"]["gpu_policy_power_cap_w"] = 160
    run = preflight(tmp_path, hosts)
    assert "gpu-a3" in run["failed"]
    assert any(f"3 x 160 (NVIDIA A100 80GB PCIe; gpu_policy_power_cap_w) + 1 x 300 (override {UUID})" in line
               for line in run["shown"]["gpu-a3"])  # fmt: skip


def test_gpu_alone_refuses_a_rack_over_its_budget_and_goes_on_with_the_other(tmp_path: Path, mode: list[str]) -> None:
    hosts = inventory(3)
    for name, variables in hosts["all"]["children"]["gpu_nodes"]["hosts"].items():
        # Nobody listens: whoever is contacted is unreachable at once.
        variables.update(ansible_host="127.0.0.1", ansible_port=1, ansible_user=name)
    run = preflight(tmp_path, hosts, *mode, playbook="gpu")
    for name in ("gpu-a1", "gpu-a2", "gpu-a3"):
        assert any("= 5400 W of 3800 W: over by 1600 W" in line for line in run["shown"][name])
        assert run["counts"][name] <= 2
    assert "Connection refused" in run["shown"]["gpu-b1"]
    (tmp_path / "hosts.yml").unlink()
    hosts["all"]["vars"]["gpu_policy_power_cap_w"] = 160
    run = preflight(tmp_path, hosts, *mode, playbook="gpu")
    assert all("Connection refused" in run["shown"][name] for name in ("gpu-a1", "gpu-a3", "gpu-b1"))


def test_a_rack_is_refused_for_its_fail_over_by_preflight_and_by_gpu_alone(tmp_path: Path, mode: list[str]) -> None:
    """3300 W with the spares idle fit 3325 W; 3450 W, when one host has lost a card that still draws, do not."""
    facts = {"gpu_policy_spares": 1, "rack_feed_limit_w": 3500}
    hosts = inventory(gpu_b1={"ansible_host": "127.0.0.1", "ansible_port": 1})
    hosts["all"]["vars"].update(facts)
    said = "fail-over on gpu-a1, what was lost still draws: 1800 + 1650 = 3450 W of 3325 W: over by 125 W"
    assert said in preflight(tmp_path, hosts, *mode)["shown"]["gpu-a2"]
    run = preflight(tmp_path, hosts, *mode, playbook="gpu")
    assert said in run["shown"]["gpu-a1"]
    assert "Connection refused" in run["shown"]["gpu-b1"]
    hosts["all"]["vars"]["rack_failover_may_exceed"] = True
    (tmp_path / "hosts.yml").unlink()
    run = preflight(tmp_path, hosts, *mode)
    assert run["failed"] == ["gpu-b1"]  # for its own address of this test
    assert "3450 W of 3500 W without derating and margin" in run["shown"]["gpu-a2"][0]


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("rack_spare_w", "75", "wanted min_cap, cap, or the watts"),
        ("rack_failover_hosts", "two", "wanted one or all"),
        ("rack_failover_may_exceed", "yes", "wanted true or false"),
        ("rack_feeds", 0, "wanted a whole number from 1 to 8"),
        ("rack_feeds_redundant", "n+1", "wanted true or false"),
        ("rack_feed", 2, "did you mean rack_feeds?"),
        ("rack_active_gpus", 3, "is gone; wanted gpu_policy_spares, the number of GPUs that stand by"),
        ("gpu_policy_spares", 4, "4 of 4 GPUs; wanted at most 3, so that one works"),
        ("gpu_policy_spares", "one", "wanted a whole number from 0"),
    ],
)
def test_a_fact_of_the_plan_that_is_wrong_is_told_once(tmp_path: Path, fact: str, value: Any, said: str) -> None:
    run = preflight(tmp_path, inventory(gpu_a2={fact: value}))
    (line,) = [line for line in run["shown"]["gpu-a2"] if fact in line]
    assert line.startswith(f"gpu-a2: {fact}: ")
    assert said in line
    assert "gpu-b1" not in run["failed"]


def test_one_hosts_mistakes_are_its_own_and_all_told(tmp_path: Path) -> None:
    mistakes = {"ansible_host": "192.0.2.300", "time_sync_mod": "x", "rack_uplink_note": "{{ nowhere }}"}
    run = preflight(tmp_path, inventory(gpu_a2=mistakes))
    assert run["failed"] == ["gpu-a2"]
    assert len(run["shown"]["gpu-a2"]) == len(mistakes)


def test_an_inventory_without_a_relay_stops_everybody(tmp_path: Path) -> None:
    hosts = inventory()
    hosts["all"]["children"]["relay"] = hosts["all"]["children"].pop("relays")
    run = preflight(tmp_path, hosts)
    assert run["failed"] == ["gpu-a1", "gpu-a2", "gpu-b1", "relay-a1"]
    lines = "\n".join(run["shown"]["gpu-b1"])
    assert "group relay: unknown (did you mean relays?)" in lines
    assert "group relays: no host in it" in lines


# --- who asks whom for the time ------------------------------------------------------------------------------

FOUR = ["ntp.aliyun.com", "ntp.tencent.com", "ntp.sjtu.edu.cn", "ntp.ntsc.ac.cn"]
SECRET = "hunter22-hunter22"


def test_upstreams_that_are_votes_pass_also_as_dictionaries(tmp_path: Path) -> None:
    given = [*FOUR[:3], {"address": "2001:db8:7::123", "operator": "our own", "offset_s": 0.002}]
    run = preflight(tmp_path, inventory(relay_a1={"time_sync_upstreams": given}))
    assert run["failed"] == []


@pytest.mark.parametrize(
    ("host", "mistake", "said"),
    [
        ("relay-a1", {"time_sync_upstreams": [*FOUR, "ntp1.cloud.aliyuncs.com"]}, "both run by alibaba: one vote"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR, "192.0.2.13"]}, "192.0.2.13: a relay of this inventory"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR, "RELAY-A1."]}, "RELAY-A1.: a relay of this inventory"),
        ("relay-a1", {"time_sync_upstreams": FOUR[:3]}, "3 operators; wanted at least 4"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR, "ntp.aliyun.com."]}, "are one server"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR, "10.0.0.300"]}, "10.0.0.300"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR[1:], {"address": FOUR[0], "nts": True}]}, "wanted all or none"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR[1:], {"adress": FOUR[0]}]}, "did you mean address?"),
        ("gpu-a2", {"time_sync_warn_ms": 31}, "time_sync_warn_ms: 31, above time_sync_alarm_ms (30)"),
        ("gpu-a2", {"time_sync_alarm_ms": 5, "time_sync_warn_ms": 6}, "above time_sync_alarm_ms (5)"),
        ("gpu-a2", {"time_sync_alarm_ms": 0}, "time_sync_alarm_ms: 0.0; wanted 0.1 to"),
        ("gpu-a2", {"time_sync_relays": ["192.0.2.11"]}, "no playbook reads it"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR, "gpu-a1"]}, "gpu-a1, a node of this inventory"),
        ("relay-a1", {"time_sync_upstreams": [*FOUR, "ntp.nict.jp:123"]}, "no port: NTP is UDP 123"),
        ("relay-a1", {"rack_networks": ["198.51.100.0/24"]}, "without a single host of Süd"),
        ("relay-a1", {"time_sync_keys": [{"id": 1, "key": SECRET}], "time_sync_key_id": True}, "wanted a whole number"),
        ("gpu-a2", {"time_sync_keys": [{"id": 1, "key": SECRET}]}, "key 1 is here and not on relay-a1"),
        ("gpu-a2", {"rack_firewall_extra_rules": [{"chain": "input", "rule": None}]}, "wanted a text, one nft rule"),
        ("gpu-a2", {"time_sync_alarm_ms": "thirty"}, "'thirty' (text); wanted a number from 0.1"),
        ("gpu-a2", {"time_sync_alarm_ms": [30]}, "(a list); wanted a number from 0.1"),
        ("gpu-a2", {"report_hours": 48}, "give it to playbooks/report.yml with -e"),
        ("relay-a1", {"time_sync_wait_s": None}, "is empty"),
        ("relay-a1", {"time_sync_upstream_minpoll": 9}, "above time_sync_upstream_maxpoll (8, its default)"),
        ("relay-a1", {"time_sync_max_slew_ppm": 200000}, "wanted 1 to 100000"),
    ],
)
def test_time_that_cannot_be_right_is_one_clear_error_before_any_change(
    tmp_path: Path, host: str, mistake: dict[str, Any], said: str
) -> None:
    run = preflight(tmp_path, inventory(**{host.replace("-", "_"): mistake}))
    assert run["failed"] == [host]
    (line,) = run["shown"][host]
    assert said in line
    assert "Ansible" not in line


@pytest.mark.parametrize(
    "keys",
    [
        SECRET,
        [SECRET],
        [{"id": "seven", "key": SECRET}],
        [{"id": 7, "type": "MD5", "key": SECRET}],
        [{"id": 7, "key": SECRET, "kind": "x"}],
        [{"id": 7, "key": [SECRET]}, 5],
        {"id": 7, "key": SECRET},
    ],
    ids=["text", "texts", "id", "type", "unknown", "several", "no_list"],  # pytest tells the environment a test's name
)
def test_a_malformed_key_is_refused_and_its_secret_is_told_nowhere(tmp_path: Path, keys: Any) -> None:
    run = preflight(tmp_path, inventory(gpu_a2={"time_sync_keys": keys}), "-vvv")
    assert run["failed"] == ["gpu-a2"]
    (line,) = run["shown"]["gpu-a2"]
    assert line.startswith("gpu-a2: time_sync_keys: ")
    told = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert told == []
