"""library/service_config.py through main(), on real files and a systemctl that remembers."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import service_config
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack import units
from fake_node import FakeNode, run_module

Call = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "SETTLE_S", 0.0)


@pytest.fixture
def call(node: FakeNode, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """One call of the module; markers go below the test's directory."""

    def run(check: bool = False, **params: Any) -> dict[str, Any]:
        params.setdefault("pending_directory", str(tmp_path / "pending"))
        return run_module(service_config, params, capsys, check)

    return run


@pytest.fixture
def service(node: FakeNode, tmp_path: Path) -> dict[str, Any]:
    """A service of one package, one directory, two files and two units, as the role time_sync has it."""
    node.installed(chrony="install ok installed")
    node.set_units({"chrony.service": {"active": "active", "file_state": "enabled", "asked": True}})
    node.answers("chronyc", "200 OK\n")
    etc = tmp_path / "etc"
    etc.mkdir()
    return {
        "packages": ["chrony"],
        "directories": [{"path": str(etc / "chrony.d"), "purge": ["*.sources"], "on_change": "reload"}],
        "files": [
            {"path": str(etc / "chrony.conf"), "content": "makestep 1 3\n"},
            {"path": str(etc / "chrony.d" / "ours.sources"), "content": "server a iburst\n", "on_change": "reload"},
        ],
        "units": [
            {"name": "chrony", "state": "started", "enabled": True, "reload_command": ["chronyc", "reload", "sources"]},
            {"name": "ntp", "state": "absent_ok_masked"},
        ],
    }


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


# --- files and directories ---------------------------------------------------------------------------


def test_writes_what_is_missing_and_a_second_run_is_unchanged(call: Call, service: dict, node: FakeNode) -> None:
    first = call(**service)
    assert first["changed"]
    assert "systemctl restart -- chrony.service" in node.deeds()
    second = call(**service)
    assert not second["changed"]
    assert second["diff"] == []
    assert second["actions"] == []
    assert node.deeds() == []


def test_a_run_without_changes_asks_systemd_once(call: Call, service: dict, node: FakeNode) -> None:
    call(**service)
    node.calls()
    call(**service)
    assert len(node.calls()) == 1


def test_check_mode_tells_the_truth_and_changes_nothing(
    call: Call, service: dict, node: FakeNode, tmp_path: Path
) -> None:
    before = tree(tmp_path / "etc")
    told = call(check=True, **service)
    assert told["changed"]
    assert tree(tmp_path / "etc") == before
    assert node.deeds() == []
    assert not (tmp_path / "pending").exists()
    done = call(**service)
    assert done["actions"] == told["actions"]


def test_only_a_changed_source_file_is_loaded_without_a_restart(call: Call, service: dict, node: FakeNode) -> None:
    call(**service)
    node.calls()
    service["files"][1]["content"] = "server b iburst\n"
    result = call(**service)
    assert node.deeds() == ["chronyc reload sources"]
    assert result["actions"][-1] == "reload chrony.service"


def test_without_a_reload_command_a_reload_is_a_restart(call: Call, service: dict, node: FakeNode) -> None:
    call(**service)
    node.calls()
    del service["units"][0]["reload_command"]
    service["files"][1]["content"] = "server b iburst\n"
    call(**service)
    assert node.deeds() == ["systemctl restart -- chrony.service"]


def test_on_change_none_leaves_the_unit_alone(call: Call, service: dict, node: FakeNode, tmp_path: Path) -> None:
    call(**service)
    node.calls()
    service["files"].append({"path": str(tmp_path / "etc/note"), "content": "x\n", "on_change": "none"})
    assert call(**service)["changed"]
    assert node.deeds() == []


def test_strangers_in_our_directory_are_removed_and_the_rest_is_left_c27(
    call: Call, service: dict, node: FakeNode, tmp_path: Path
) -> None:
    """C27."""
    call(**service)
    folder = tmp_path / "etc/chrony.d"
    (folder / "dhcp.sources").write_text("server 192.0.2.1 key hunter22\n")
    (folder / "README").write_text("stays\n")
    node.calls()
    result = call(**service)
    assert result["changed"]
    assert not (folder / "dhcp.sources").exists()
    assert (folder / "README").exists()
    assert node.deeds() == ["chronyc reload sources"]
    assert "hunter22" not in json.dumps(result)


def test_mode_alone_is_put_right_without_a_restart(call: Call, service: dict, node: FakeNode, tmp_path: Path) -> None:
    call(**service)
    node.calls()
    (tmp_path / "etc/chrony.conf").chmod(0o600)
    result = call(**service)
    assert result["actions"] == [f"file {tmp_path}/etc/chrony.conf: mode"]
    assert stat.S_IMODE((tmp_path / "etc/chrony.conf").stat().st_mode) == 0o644
    assert node.deeds() == []


def test_an_owner_nobody_asked_for_is_kept(call: Call, tmp_path: Path, node: FakeNode) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    # Only root may give a file away; for others a group of their own has to do.
    wanted = (12345, 12346) if os.geteuid() == 0 else (os.geteuid(), os.getgroups()[-1])
    os.chown(path, *wanted)
    call(files=[{"path": str(path), "content": "new"}])
    assert (path.stat().st_uid, path.stat().st_gid) == wanted


def test_state_absent_removes_once(call: Call, tmp_path: Path, node: FakeNode) -> None:
    path = tmp_path / "gone"
    path.write_text("x")
    assert call(files=[{"path": str(path), "state": "absent"}])["changed"]
    assert not path.exists()
    assert not call(files=[{"path": str(path), "state": "absent"}])["changed"]


def test_a_link_is_replaced_not_followed(call: Call, tmp_path: Path, node: FakeNode) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    (tmp_path / "file").symlink_to(target)
    assert call(files=[{"path": str(tmp_path / "file"), "content": "ours"}])["changed"]
    assert target.read_text() == "theirs"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("content", ["{}", '{"a": [1, "ü"]}\n', "Zürich ✓ 机架\n", "", "no newline at the end"])
def test_any_text_arrives_as_it_is_c88(content: str, call: Call, tmp_path: Path, node: FakeNode) -> None:
    """C88."""
    path = tmp_path / "file"
    call(files=[{"path": str(path), "content": content}])
    assert path.read_bytes() == content.encode()
    assert not call(files=[{"path": str(path), "content": content}])["changed"]


def test_a_directory_in_a_files_place_is_refused(call: Call, tmp_path: Path, node: FakeNode) -> None:
    (tmp_path / "file").mkdir()
    assert "wanted a file" in call(files=[{"path": str(tmp_path / "file"), "content": "x"}])["msg"]


def test_a_missing_parent_is_named_before_anything_changes(call: Call, tmp_path: Path, node: FakeNode) -> None:
    files = [{"path": str(tmp_path / "first"), "content": "x"}, {"path": str(tmp_path / "no/second"), "content": "x"}]
    result = call(files=files)
    assert result["failed"]
    assert f"no directory {tmp_path}/no" in result["msg"]
    assert not (tmp_path / "first").exists()


@pytest.mark.parametrize("mode", ["420", "644", "u=rw", "0999", "0o644"])
def test_a_mode_that_is_not_quoted_octal_is_refused(mode: str, call: Call, tmp_path: Path, node: FakeNode) -> None:
    result = call(files=[{"path": str(tmp_path / "file"), "content": "x", "mode": mode}])
    assert result["failed"]
    assert "quote" in result["msg"]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"content": "x", "state": "absent"},
        {"content": "x", "sha256": "0" * 64},
        {"content": "x", "validate": "true"},
    ],
)
def test_contradictions_are_refused(entry: dict, call: Call, tmp_path: Path, node: FakeNode) -> None:
    assert call(files=[{"path": str(tmp_path / "file"), **entry}])["failed"]
    assert not (tmp_path / "file").exists()


def test_one_path_twice_is_refused(call: Call, tmp_path: Path, node: FakeNode) -> None:
    entry = {"path": str(tmp_path / "file"), "content": "x"}
    assert "named twice" in call(files=[entry, entry])["msg"]


def test_no_permission_is_an_error_of_its_own(call: Call, node: FakeNode) -> None:
    result = call(
        files=[{"path": "/sys/kernel/steadyrack-test", "content": "x"}]
    )  # not even root may create files there
    assert result["error"]["kind"] in ("AccessError", "StateFileError")


# --- validation --------------------------------------------------------------------------------------


def test_what_the_validator_refuses_replaces_nothing(call: Call, service: dict, node: FakeNode, tmp_path: Path) -> None:
    call(**service)
    node.calls()
    before = tree(tmp_path / "etc")
    node.answers("judge", "", 1, "Invalid directive at line 1")
    service["files"][0].update(content="alow all\n", validate="judge -f %s")
    service["files"][1]["content"] = "server c iburst\n"
    result = call(**service)
    assert result["failed"]
    assert "Invalid directive" in result["msg"]
    assert "chrony.conf" in result["msg"]
    assert tree(tmp_path / "etc") == before
    assert not list((tmp_path / "pending").glob("*"))


def test_the_validator_sees_the_new_text_beside_the_old_file(call: Call, tmp_path: Path, node: FakeNode) -> None:
    node.program("judge", f'#!/bin/sh\ncat "$2" > {tmp_path}/seen; dirname "$2" > {tmp_path}/where\n')
    call(files=[{"path": str(tmp_path / "file"), "content": "new\n", "validate": "judge -f %s"}])
    assert (tmp_path / "seen").read_text() == "new\n"
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_validator_that_is_not_installed_is_reported(call: Call, tmp_path: Path, node: FakeNode) -> None:
    result = call(files=[{"path": str(tmp_path / "file"), "content": "x", "validate": "no-such-judge %s"}])
    assert result["not_validated"] == [str(tmp_path / "file")]


# --- packages and content on demand --------------------------------------------------------------------


def test_a_missing_package_hands_back_and_changes_nothing(
    call: Call, service: dict, node: FakeNode, tmp_path: Path
) -> None:
    node.installed()
    result = call(**service)
    assert result["packages_missing"] == ["chrony"]
    assert not result["changed"]
    assert tree(tmp_path / "etc") == {}
    assert node.deeds() == []


def test_check_mode_on_a_bare_host_lists_everything_to_come_c81(
    call: Call, service: dict, node: FakeNode, tmp_path: Path
) -> None:
    """C81."""
    node.installed()
    node.set_units({})
    service["files"][0]["owner"] = "_nobody_made_me_yet"
    service["files"].append({"path": str(tmp_path / "made/by/package"), "content": "x"})
    result = call(check=True, **service)
    assert not result.get("failed")
    assert result["changed"]
    assert "install package chrony" in result["actions"]
    assert "enable chrony.service" in result["actions"]
    assert "start chrony.service" in result["actions"]
    assert tree(tmp_path / "etc") == {}


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        ("install ok installed", []),
        ("hold ok installed", []),
        ("deinstall ok config-files", ["chrony"]),
        ("install reinstreq half-installed", ["chrony"]),
        ("install ok half-configured", ["chrony"]),
        ("unknown ok not-installed", ["chrony"]),
    ],
)
def test_the_status_is_read_in_its_three_parts_c78(status: str, missing: list, call: Call, node: FakeNode) -> None:
    """C78."""
    node.installed(chrony=status)
    assert call(packages=["chrony"])["packages_missing"] == missing


def test_a_digest_that_differs_asks_for_the_content_and_changes_nothing(
    call: Call, tmp_path: Path, node: FakeNode
) -> None:
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of "x"
    other = {"path": str(tmp_path / "other"), "content": "y"}
    by_digest = {"path": str(tmp_path / "big"), "sha256": digest}
    asked = call(files=[by_digest, other])
    assert asked["content_needed"] == [str(tmp_path / "big")]
    assert not asked["changed"]
    assert not (tmp_path / "other").exists()
    assert call(files=[{**by_digest, "content": "x"}, other])["changed"]
    again = call(files=[by_digest, other])
    assert not again["changed"]
    assert again["content_needed"] == []


def test_a_host_without_dpkg_is_told(call: Call, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.answers("dpkg-query", "", 2, "database is gone")
    result = call(packages=["chrony"])
    assert result["failed"]
    assert "dpkg" in result["msg"]


# --- units -------------------------------------------------------------------------------------------


def test_a_stopped_and_disabled_unit_is_put_right(call: Call, service: dict, node: FakeNode) -> None:
    call(**service)
    node.change_unit("chrony.service", active="inactive", file_state="disabled")
    node.calls()
    result = call(**service)
    assert node.deeds() == ["systemctl enable -- chrony.service", "systemctl start -- chrony.service"]
    assert result["units"][0]["state"] == "running"
    assert result["checks"][0]["verdict"] == "pass"


def test_a_unit_that_does_not_exist_is_not_masked_c25(call: Call, service: dict, node: FakeNode) -> None:
    """C25."""
    result = call(**service)
    assert not any("mask" in deed for deed in node.deeds())
    assert result["units"][1] == {**result["units"][1], "name": "ntp.service", "exists": False, "state": "missing"}


def test_a_rival_that_exists_is_stopped_and_masked_once(call: Call, service: dict, node: FakeNode) -> None:
    node.change_unit("ntp.service", active="active", file_state="enabled")
    call(**service)
    assert node.unit("ntp.service") == {"active": "inactive", "file_state": "masked"}
    node.calls()
    assert not call(**service)["changed"]


def test_a_rival_known_by_an_alias_is_masked_by_its_real_name(call: Call, service: dict, node: FakeNode) -> None:
    node.change_unit("ntp.service", alias="ntpsec.service")
    node.change_unit("ntpsec.service", active="active", file_state="enabled")
    call(**service)
    assert "systemctl mask -- ntpsec.service" in node.deeds()


def test_our_own_unit_is_never_masked_by_another_name(call: Call, service: dict, node: FakeNode) -> None:
    node.change_unit("ntp.service", alias="chrony.service")
    result = call(**service)
    assert result["failed"]
    assert "another name" in result["msg"]
    assert node.deeds() == []


def test_a_masked_unit_that_is_to_run_is_unmasked(call: Call, service: dict, node: FakeNode) -> None:
    call(**service)
    node.change_unit("chrony.service", active="inactive", file_state="masked")
    node.calls()
    assert call(**service)["changed"]
    assert node.deeds() == [
        "systemctl unmask -- chrony.service",
        "systemctl enable -- chrony.service",
        "systemctl start -- chrony.service",
    ]


def test_a_start_that_the_units_condition_swallows_is_not_a_change_c80_c33(
    call: Call, service: dict, node: FakeNode
) -> None:
    """C80, C33."""
    condition = "ConditionCapability=CAP_SYS_TIME"
    node.set_units({"chrony.service": {"file_state": "enabled", "condition": condition}})
    first = call(**service)
    assert first["changed"]
    assert "start chrony.service" not in first["actions"]
    for check in (False, True):
        again = call(check=check, **service)
        assert not again["changed"]
        assert again["diff"] == []
        row = again["checks"][0]
        assert row["verdict"] == "not_judged"
        assert row["reason"] == condition + " was not met"
        assert again["units"][0]["skipped_by_condition"]


def test_a_unit_whose_condition_is_met_now_is_started(call: Call, service: dict, node: FakeNode) -> None:
    node.set_units({"chrony.service": {"file_state": "enabled", "condition": "ConditionPathExists=/x"}})
    call(**service)
    node.change_unit("chrony.service", condition=None)
    result = call(**service)
    assert result["changed"]
    assert result["units"][0]["state"] == "running"


def test_a_start_that_fails_says_why(call: Call, service: dict, node: FakeNode) -> None:
    node.set_units({"chrony.service": {"file_state": "enabled", "fails": True}})
    result = call(**service)
    assert result["failed"]
    assert "the last words of chrony.service" in result["msg"]
    assert "journalctl" in result["msg"]


def test_a_unit_that_dies_after_its_start_is_noticed(call: Call, service: dict, node: FakeNode) -> None:
    node.set_units({"chrony.service": {"file_state": "enabled", "dies": True, "type": "simple"}})
    result = call(**service)
    assert result["error"]["kind"] == "NotAppliedError"
    assert "chrony.service" in result["msg"]


def test_a_mask_that_does_not_take_is_noticed(call: Call, service: dict, node: FakeNode) -> None:
    node.change_unit("ntp.service", file_state="disabled", unmaskable=True)
    assert call(**service)["error"]["kind"] == "NotAppliedError"


def test_a_one_shot_that_has_done_its_work_counts_as_started(call: Call, node: FakeNode) -> None:
    node.set_units({"work.service": {"type": "oneshot", "file_state": "enabled"}})
    wanted = {"units": [{"name": "work", "state": "started"}]}
    assert call(**wanted)["changed"]
    assert not call(**wanted)["changed"]


def test_a_new_unit_file_is_loaded_before_its_unit_is_started(call: Call, node: FakeNode, tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    node.set_units({"our.service": {"missing": True}})
    wanted = {
        "files": [{"path": str(folder / "our.service"), "content": "[Service]\nExecStart=/bin/true\n"}],
        "units": [{"name": "our.service", "state": "started", "enabled": True}],
    }
    assert call(**wanted)["changed"]
    assert [deed.split()[1] for deed in node.deeds()] == ["daemon-reload", "enable", "start"]
    assert not call(**wanted)["changed"]


def test_a_unit_file_changed_behind_systemds_back_is_loaded(call: Call, service: dict, node: FakeNode) -> None:
    call(**service)
    node.change_unit("chrony.service", stale=True)
    node.calls()
    assert call(**service)["actions"] == ["systemctl daemon-reload"]
    assert node.deeds() == ["systemctl daemon-reload"]


def test_a_wanted_unit_that_nobody_brings_is_an_error(call: Call, node: FakeNode) -> None:
    result = call(units=[{"name": "nosuch", "state": "started"}])
    assert result["failed"]
    assert "nosuch.service" in result["msg"]


@pytest.mark.parametrize("name", ["../evil", "a b", "", "a/b.service", "."])
def test_a_name_that_cannot_be_a_unit_is_refused(name: str, call: Call, node: FakeNode) -> None:
    assert "not a unit name" in call(units=[{"name": name, "state": "started"}])["msg"]


def test_no_systemd_is_said_in_one_sentence(call: Call, node: FakeNode) -> None:
    node.answers("systemctl", "", 1, "System has not been booted with systemd as init system (PID 1).")
    assert "needs a running systemd" in call(units=[{"name": "chrony", "state": "started"}])["msg"]


# --- interrupted runs ----------------------------------------------------------------------------------


def test_a_run_cut_off_between_file_and_restart_is_finished_by_the_next(
    call: Call, service: dict, node: FakeNode, tmp_path: Path
) -> None:
    call(**service)
    node.change_unit("chrony.service", fails=True)
    service["files"][0]["content"] = "makestep 0.1 3\n"
    assert call(**service)["failed"]
    assert (tmp_path / "etc/chrony.conf").read_text() == "makestep 0.1 3\n"
    # The daemon came back with the old configuration in the meantime: every file is right, it still must restart.
    node.change_unit("chrony.service", fails=False, active="active")
    node.calls()
    told = call(check=True, **service)
    assert told["changed"]
    assert told["actions"] == ["restart chrony.service"]
    assert node.deeds() == []
    result = call(**service)
    assert result["actions"] == ["restart chrony.service"]
    assert not list((tmp_path / "pending").iterdir())
    assert not call(**service)["changed"]


def test_the_marker_is_there_before_the_first_file_changes(
    call: Call, service: dict, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible.module_utils.steadyrack import service_config as domain

    call(**service)
    service["files"][0]["content"] = "makestep 0.1 3\n"

    def power_cut(*_args: Any, **_kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(domain, "_put_file", power_cut)
    with pytest.raises(KeyboardInterrupt):
        call(**service)
    marker = json.loads((tmp_path / "pending/chrony.service").read_text())
    assert marker["action"] == "restart"
    assert marker["because"] == [str(tmp_path / "etc/chrony.conf")]


@pytest.mark.parametrize("marker", ["", "{", "[]", '{"action": "whatever"}'])
def test_a_marker_that_cannot_be_read_asks_for_a_restart(
    marker: str, call: Call, service: dict, node: FakeNode, tmp_path: Path
) -> None:
    call(**service)
    (tmp_path / "pending/chrony.service").write_text(marker)
    node.calls()
    assert call(**service)["actions"] == ["restart chrony.service"]


def test_a_pending_restart_outlives_a_later_reload(call: Call, service: dict, node: FakeNode, tmp_path: Path) -> None:
    call(**service)
    (tmp_path / "pending/chrony.service").write_text('{"version": 1, "action": "restart"}')
    service["files"][1]["content"] = "server z iburst\n"
    node.calls()
    call(**service)
    assert node.deeds() == ["systemctl restart -- chrony.service"]


# --- secrets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
def test_a_secret_appears_nowhere_in_the_answer_c85(check: bool, call: Call, tmp_path: Path, node: FakeNode) -> None:
    """C85."""
    path = tmp_path / "keys"
    path.write_text("1 MD5 old-secret-word\n")
    wanted = {"path": str(path), "content": "1 MD5 new-secret-word\n", "mode": "0600", "no_diff": True}
    answer = json.dumps(call(check=check, files=[wanted]))
    assert "secret-word" not in answer
    assert '"changed": true' in answer


def test_a_refused_secret_is_not_printed_by_its_validator(call: Call, tmp_path: Path, node: FakeNode) -> None:
    node.program("judge", '#!/bin/sh\ncat "$1" >&2; exit 1\n')
    wanted = {"path": str(tmp_path / "keys"), "content": "secret-word\n", "no_diff": True, "validate": "judge %s"}
    answer = call(files=[wanted])
    assert answer["failed"]
    assert "secret-word" not in json.dumps(answer)


def test_a_secret_is_not_logged_on_the_host_c85(
    call: Call, tmp_path: Path, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C85: Ansible logs every module's parameters to the host's journal."""
    logged: list[str] = []
    monkeypatch.setattr(AnsibleModule, "log", lambda _self, text, **rest: logged.append(f"{text} {rest}"))
    call(files=[{"path": str(tmp_path / "keys"), "content": "1 MD5 secret-word\n", "no_diff": True}])
    assert "keys" in logged[0]
    assert "secret-word" not in "".join(logged)


@pytest.mark.parametrize(
    "entry", [{"path": "/x", "content": "secret-word", "state": "wrong"}, {"content": "secret-word"}, "secret-word"]
)
def test_a_refused_parameter_does_not_repeat_a_content(entry: Any, call: Call) -> None:
    answer = call(files=[entry])
    assert answer["failed"]
    assert "secret-word" not in json.dumps(answer.get("invocation", {}))


def test_a_changed_secret_of_the_same_length_still_shows_that_it_changed(call: Call, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("1 MD5 aaaa\n")
    (entry,) = call(files=[{"path": str(tmp_path / "keys"), "content": "1 MD5 bbbb\n", "no_diff": True}])["diff"]
    assert entry["before"] != entry["after"]


def test_contents_are_not_repeated_as_invocation(call: Call, service: dict) -> None:
    assert "makestep" not in json.dumps(call(**service).get("invocation", {}))


def test_the_diff_shows_before_and_after_of_one_line(call: Call, service: dict, tmp_path: Path) -> None:
    call(**service)
    (tmp_path / "etc/chrony.conf").write_text("makestep 1 -1\n")
    (entry, unit) = call(check=True, **service)["diff"]
    assert (entry["before"], entry["after"]) == ("makestep 1 -1\n", "makestep 1 3\n")
    assert entry["before_header"].startswith(str(tmp_path / "etc/chrony.conf"))
    assert unit["after"] == "restart\n"
