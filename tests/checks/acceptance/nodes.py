"""A host under check: what the inventory says of it, and the evidence that was read from it.

All evidence comes over testinfra's `host.run`, one command a host, all hosts at once. With `--evidence DIR`
the same raw evidence comes from DIR/<host>.json instead, and everything after that is the same.
"""

from __future__ import annotations

import base64
import functools
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

ROOT = Path(__file__).resolve().parents[3]
READER = Path(__file__).with_name("reader.py")
ON_NODE_S = 90
"""`timeout` on the node ends the reader after this; its own deadlines come to less."""
ANSWER_S = 120.0
"""After this the controller goes on without the host. Also covers a connection that dies under way."""


class UnreadableError(Exception):
    """The host, or a part of it, could not be read: every check that needs it is `unknown`."""


class UnsetError(Exception):
    """The inventory does not say what a check needs to expect."""


class Host(Protocol):
    """What is used of testinfra's host."""

    backend: Any

    def run(self, command: str, *args: str) -> Any: ...


class Node:
    """One host. `peers` are the variables of all hosts of the inventory, by name."""

    def __init__(self, host: Host, peers: Mapping[str, Mapping[str, Any]], evidence_dir: Path | None = None) -> None:
        self.host = host
        self.name = str(host.backend.get_hostname())
        self.peers = peers
        self.variables = peers[self.name]
        self.evidence_dir = evidence_dir
        self._evidence: dict[str, Any] | None = None
        self._trouble = "not read yet"

    # --- what should be ---

    def setting(self, name: str) -> Any:
        """A setting of this host: the inventory's, else the default of the role that the name belongs to."""
        value = self.variables.get(name)
        if value is None:
            value = _role_defaults(name).get(name)
        if value is None:
            raise UnsetError(f"{name} is set neither in the inventory nor in the role's defaults")
        if "{{" in json.dumps(value):
            raise UnsetError(f"{name} is {value!r}, without a value: only playbooks/acceptance.yml resolves templates")
        return value

    def setting_or(self, name: str, otherwise: Any) -> Any:
        """As `setting`, with a value for where nobody says anything."""
        try:
            return self.setting(name)
        except UnsetError:
            return otherwise

    @property
    def groups(self) -> list[str]:
        return list(self.variables.get("group_names", []))

    def site_relays(self) -> dict[str, str]:
        """The relays of this host's site: name and the address at which the inventory reaches each."""
        site = self.variables.get("rack_site")
        return {
            name: str(facts.get("ansible_host", name))
            for name, facts in self.peers.items()
            if "relays" in facts.get("group_names", []) and facts.get("rack_site") == site
        }

    # --- what is ---

    def read(self, request: Mapping[str, Any]) -> None:
        """Take the evidence, or keep the reason why there is none."""
        try:
            self._evidence = self._from_file() if self.evidence_dir else self._from_host(request)
        except UnreadableError as trouble:
            self._trouble = str(trouble)

    def give_up(self, why: str) -> None:
        self._trouble = why

    @property
    def evidence(self) -> dict[str, Any]:
        if self._evidence is None:
            raise UnreadableError(self._trouble)
        return self._evidence

    def _from_file(self) -> dict[str, Any]:
        assert self.evidence_dir is not None
        try:
            return _evidence((self.evidence_dir / f"{self.name}.json").read_text())
        except OSError as error:
            raise UnreadableError(f"unreachable: no recorded evidence ({error.strerror})") from None

    def _from_host(self, request: Mapping[str, Any]) -> dict[str, Any]:
        interpreter = str(self.variables.get("ansible_python_interpreter") or "python3")
        if not interpreter.startswith("/"):
            interpreter = "python3"  # Ansible's `auto` and its kin are no programs
        command = f"timeout -k 5 {ON_NODE_S} {interpreter} -I -c {reader_argument(request)}"
        try:
            answer = self.host.run(command)
        except RuntimeError as error:  # testinfra's only sign that ssh itself failed
            raise UnreadableError(f"unreachable: {_ssh_said(error)}") from None
        if answer.rc == 124:
            raise UnreadableError(f"unreachable: the reader was ended after {ON_NODE_S} s on the node")
        if answer.rc != 0:
            raise UnreadableError(f"the reader failed on the node: {answer.stderr.strip()[-300:] or answer.rc}")
        return _evidence(answer.stdout)

    # --- parts of the evidence, each of them there or UnreadableError ---

    def command(self, label: str) -> str:
        """The output of a command that ended well."""
        record = self._part("commands", label)
        if record["error"] or record["rc"] != 0:
            said = record["error"] or (record["out"].strip() or record["err"].strip() or f"exit status {record['rc']}")
            raise UnreadableError(f"{' '.join(record['argv'])}: {said}")
        return str(record["out"])

    def unit(self, name: str) -> dict[str, str]:
        return dict(_whole(name, self._part("units", name)))

    def package(self, name: str) -> dict[str, str] | None:
        found = self._part("packages", name)
        return None if found is None else dict(_whole(name, found))

    def files(self, pattern: str) -> dict[str, dict[str, Any]]:
        return dict(self._part("files", pattern))

    def file(self, path: str) -> dict[str, Any] | None:
        """One file; None when there is none."""
        found = self.files(path).get(path)
        return None if found is None else dict(_whole(path, found))

    def processes(self, name: str) -> list[dict[str, Any]]:
        return list(self._part("processes", name))

    def section(self, name: str) -> Any:
        if name not in self.evidence:
            raise UnreadableError(f"the evidence has no {name}")
        return self.evidence[name]

    def _part(self, section: str, name: str) -> Any:
        parts = self.section(section)
        if name not in parts:
            raise UnreadableError(f"the evidence has no {section} entry {name}")
        return parts[name]


def _whole(name: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
    if record.get("error"):
        raise UnreadableError(f"{name}: {record['error']}")
    return record


def reader_argument(request: Mapping[str, Any]) -> str:
    """The reader and its request as one word for any shell: only base64 within the quotes, so that nothing on the
    way (ssh, sudo, Ansible's templating) finds anything to interpret."""
    source = f"REQUEST = {json.dumps(json.dumps(request))}\n"
    text = READER.read_text().replace('if __name__ == "__main__":', source + 'if __name__ == "__main__":')
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return f"\"import base64,zlib;exec(compile(zlib.decompress(base64.b64decode('{packed}')),'reader','exec'))\""


def _evidence(text: str) -> dict[str, Any]:
    """The JSON on the last line, after what a login banner may say; a recorded file is JSON as a whole."""
    for part in (text, (text.strip().splitlines() or [""])[-1]):
        try:
            found = json.loads(part)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    raise UnreadableError(f"the reader printed no JSON but {text.strip()[-200:]!r}")


def _ssh_said(error: RuntimeError) -> str:
    answer = error.args[0] if error.args else error
    said = str(getattr(answer, "stderr", "") or answer).strip().splitlines()
    return said[-1] if said else "ssh ended with 255"


@functools.cache
def _role_defaults(name: str) -> dict[str, Any]:
    """The defaults of the role whose name the setting begins with; of two such roles the longer name."""
    roles = sorted((path.name for path in (ROOT / "roles").glob("*") if name.startswith(f"{path.name}_")), key=len)
    path = ROOT / "roles" / (roles[-1] if roles else "-") / "defaults" / "main.yml"
    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


# --- reading -------------------------------------------------------------------------------------


def merge(requests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One request for all that several test files want of a host."""
    merged: dict[str, Any] = {}
    for request in requests:
        for key, wish in request.items():
            if isinstance(wish, dict):
                merged.setdefault(key, {}).update(wish)
            elif isinstance(wish, (list, tuple)):
                merged[key] = list(dict.fromkeys([*merged.get(key, []), *wish]))
            else:
                merged[key] = wish
    return merged


def read_all(
    nodes: Iterable[Node], request_of: Callable[[Node], Mapping[str, Any]], answer_s: float = ANSWER_S
) -> None:
    """Read every host at the same time. One that does not answer is left behind with its thread, and said so."""
    threads = []
    for node in nodes:
        node.give_up(f"unreachable: no answer within {answer_s:g} s")
        thread = threading.Thread(target=node.read, args=(request_of(node),), name=node.name, daemon=True)
        thread.start()
        threads.append(thread)
    end = time.monotonic() + answer_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
