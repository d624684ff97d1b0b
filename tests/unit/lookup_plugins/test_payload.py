"""The agent's files as data: complete, by digest, with content only where asked for."""

import hashlib
import importlib.metadata
from pathlib import Path

import payload
import pytest
from ansible.errors import AnsibleLookupError
from ansible.plugins.loader import lookup_loader

NODE = "/usr/lib/steadyrack"


@pytest.fixture
def query(repository):
    lookup_loader.add_directory(str(repository / "lookup_plugins"))
    return lambda **options: lookup_loader.get("payload").run([], {}, **options)


def test_a_node_gets_the_whole_package_the_binding_the_command_and_its_launcher(query, repository):
    paths = [entry["path"] for entry in query()]
    modules = {f"{NODE}/steadyrack/{path.name}" for path in (repository / "module_utils/steadyrack").glob("*.py")}
    assert set(paths) == modules | {f"{NODE}/pynvml.py", f"{NODE}/agent.py", "/usr/bin/steadyrack"}
    assert len(paths) == len(set(paths))


def test_the_first_look_carries_digests_and_no_content(query):
    entries = query()
    assert all(len(entry["sha256"]) == 64 and "content" not in entry for entry in entries)
    assert sum(len(str(entry)) for entry in entries) < 200 * len(entries)


def test_content_is_given_only_for_the_files_asked_for_and_has_the_digest(query):
    digests = {entry["path"]: entry["sha256"] for entry in query()}
    for entry in query(content_for=[f"{NODE}/pynvml.py", "/usr/bin/steadyrack"]):
        if entry["path"] in (f"{NODE}/pynvml.py", "/usr/bin/steadyrack"):
            assert hashlib.sha256(entry["content"].encode()).hexdigest() == digests[entry["path"]]
        else:
            assert "content" not in entry


def test_the_launcher_may_be_run_and_the_rest_may_be_read(query):
    modes = {entry["path"]: entry["mode"] for entry in query()}
    assert modes["/usr/bin/steadyrack"] == "0755"
    assert modes[f"{NODE}/pynvml.py"] == "0644"


def test_new_code_restarts_the_watch_and_a_new_pynvml_does_not(query):
    asks = {entry["path"]: entry.get("on_change") for entry in query()}
    assert asks[f"{NODE}/agent.py"] is asks[f"{NODE}/steadyrack/alarms.py"] is None  # the default: restart
    assert asks[f"{NODE}/pynvml.py"] == "none"


def test_the_old_package_pynvml_is_refused_with_the_repair(tmp_path, monkeypatch):
    import sys

    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with pytest.raises(AnsibleLookupError, match="pip uninstall -y pynvml"):
        payload.binding()


def test_a_controller_without_nvidia_ml_py_is_told_what_to_install(monkeypatch):
    def absent(_name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(AnsibleLookupError, match=r"requirements\.txt"):
        payload.binding()


def test_every_file_of_the_payload_runs_on_the_oldest_python_of_a_node():
    """Syntax only; names that later Pythons have are caught by running the tests there."""
    import ast

    for _path, source, _mode in payload.sources():
        if source.suffix == ".py" and source.name != "pynvml.py":
            ast.parse(Path(source).read_text(), feature_version=(3, 8))
