"""What every role keeps: its inputs declared twice and equally, its names, its sizes, its README in step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import role_readme
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]

ROLES = sorted(path for path in (REPOSITORY / "roles").iterdir() if path.is_dir())
TASK_FILES = sorted(REPOSITORY.glob("roles/*/tasks/*.yml"))
# Role names may be used in Jinja as <role>_<thing>; what begins so must be declared, private or the output.
NAME_FORM = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def defaults(role: Path) -> dict[str, Any]:
    return load(role / "defaults/main.yml") or {}


def tasks(path: Path) -> list[dict[str, Any]]:
    """All tasks of a file, those in blocks too."""
    found = []
    for task in load(path) or []:
        found.append(task)
        for part in ("block", "rescue", "always"):
            found += task.get(part) or []
    return found


def roles(function: Any) -> Any:
    return pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])(function)


def task_files(function: Any) -> Any:
    names = [str(path.relative_to(REPOSITORY / "roles")) for path in TASK_FILES]
    return pytest.mark.parametrize("path", TASK_FILES, ids=names)(function)


def test_there_are_roles_to_look_at() -> None:
    assert {"package_mirror", "time_sync", "node_agent", "gpu_policy"} <= {role.name for role in ROLES}


@roles
def test_defaults_and_specification_say_the_same(role: Path) -> None:
    options = role_readme.options_of(role)
    specified = {name: option.get("default") for name, option in options.items() if not option.get("required")}
    assert defaults(role) == specified


@roles
def test_a_required_input_has_no_default(role: Path) -> None:
    required = {name for name, option in role_readme.options_of(role).items() if option.get("required")}
    assert not required & set(defaults(role))


@roles
def test_inputs_begin_with_the_roles_name(role: Path) -> None:
    assert NAME_FORM.fullmatch(role.name)
    assert [name for name in role_readme.options_of(role) if not name.startswith(role.name + "_")] == []


@roles
def test_every_input_is_described_and_typed(role: Path) -> None:
    for name, option in role_readme.options_of(role).items():
        assert option.get("description"), name
        assert option.get("type"), name


@roles
def test_every_default_has_its_reason(role: Path) -> None:
    """Some comment stands above each input, or above the group of lines it belongs to."""
    lines = (role / "defaults/main.yml").read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(rf"{role.name}_\w+:", line):
            above = number - 1
            while above >= 0 and lines[above].strip() and not lines[above].startswith("#"):
                above -= 1
            assert above >= 0 and lines[above].startswith("#"), f"{line}: say why"  # noqa: PT018


@roles
def test_defaults_are_plain_data(role: Path) -> None:
    """The checks against a real rack read them without Ansible."""
    assert "{{" not in (role / "defaults/main.yml").read_text()


@roles
def test_everything_else_is_private(role: Path) -> None:
    for path in role.glob("vars/*.yml"):
        assert [name for name in load(path) or {} if not name.startswith(f"__{role.name}_")] == [], path
    for path in role.glob("tasks/*.yml"):
        for task in tasks(path):
            names = [task.get("register"), *(task.get("vars") or {}), *(task.get("ansible.builtin.set_fact") or {})]
            allowed = (f"__{role.name}_", f"{role.name}_result")
            assert [name for name in names if name and not name.startswith(allowed)] == [], f"{path}: {task['name']}"


@roles
def test_only_declared_inputs_are_read(role: Path) -> None:
    known = {*role_readme.options_of(role), f"{role.name}_result"}
    files = [path for folder in ("tasks", "templates", "vars", "handlers") for path in role.glob(f"{folder}/*")]
    for path in files:
        # Comments and prose may name anything; what stands in Jinja must exist.
        for jinja in re.findall(r"\{[{%].*?[%}]\}|when:.*", path.read_text(), re.DOTALL):
            without_texts = re.sub(r"'[^']*'|\|\s*\w+", "", jinja)  # nor are names of filters meant
            used = re.findall(rf"(?<![\w./]){role.name}_\w+", without_texts)
            assert [name for name in used if name not in known] == [], path


@roles
def test_no_role_reads_another_roles_variables(role: Path) -> None:
    others = [other.name for other in ROLES if other != role]
    for path in [file for folder in ("tasks", "templates", "vars", "defaults") for file in role.glob(f"{folder}/*")]:
        for jinja in re.findall(r"\{[{%].*?[%}]\}|when:.*", path.read_text(), re.DOTALL):
            used = [
                name for name in others if re.search(rf"(?<![\w./])(__)?{name}_\w+", re.sub(r"'[^']*'", "''", jinja))
            ]
            assert used == [], path


@roles
def test_the_readme_is_in_step(role: Path) -> None:
    text = (role / "README.md").read_text()
    assert text == role_readme.updated(role), "run: python tests/tools/role_readme.py --write"
    assert f"{role.name}_result" in text


@task_files
def test_task_files_are_short(path: Path) -> None:
    lines, limit = path.read_text().splitlines(), 25 if path.name == "main.yml" else 60
    assert len(lines) <= limit
    assert len(tasks(path)) <= 8


@task_files
def test_tasks_use_full_names_and_no_shortcuts(path: Path) -> None:
    for task in tasks(path):
        assert "ignore_errors" not in task, task["name"]
        assert "ansible.builtin.package" not in task, f"{task['name']}: costs a hidden setup"
        assert "ansible.builtin.service" not in task, f"{task['name']}: costs a hidden setup"
        for name in ("ansible.builtin.command", "ansible.builtin.shell"):
            if name in task:
                assert "changed_when" in task, task["name"]
                assert isinstance(task[name], dict), task["name"]
                assert "argv" in task[name], task["name"]


@roles
def test_no_dependencies(role: Path) -> None:
    assert not (load(role / "meta/main.yml") or {}).get("dependencies")


def test_preflight_knows_every_role() -> None:
    (play,) = load(REPOSITORY / "playbooks/preflight.yml")
    names = {role.name for role in ROLES}
    assert set(play["vars"]["preflight_specs"]) == names
    assert {f"{name}_" for name in names} <= set(play["vars"]["preflight_prefixes"])


def test_time_sync_hands_every_parameter_to_its_module() -> None:
    """What the role left out would silently be the module's own default."""
    import chrony_config

    (task,) = tasks(REPOSITORY / "roles/time_sync/tasks/configure.yml")
    documented = yaml.safe_load(chrony_config.DOCUMENTATION)["options"]
    assert set(task["chrony_config"]) == set(documented) - {"pending_directory"}
