# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
name: payload
short_description: The files of the steadyrack agent, as data for service_config
description:
  - Lists what a node needs to run the agent - the package C(steadyrack), pynvml, the command and its
    launcher - each with path, mode and digest. Content is added only for the paths asked for, so
    that a node that has everything is compared by some kilobytes.
  - pynvml is the single file of the package nvidia-ml-py in the controller's own environment. An
    environment in which the old package C(pynvml) stands before it is refused.
author: steadyrack contributors
version_added: "0.1.0"
options:
  _terms: {description: None are taken.}
  content_for:
    description: Paths on the node whose content to give, as from C(content_needed) of service_config.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Compare the agent's files by their digests
  service_config:
    files: "{{ query('payload') }}"
  register: result

- name: Send what differs
  service_config:
    files: "{{ query('payload', content_for=result.content_needed) }}"
"""

RETURN = r"""
_raw:
  description: Entries for the option C(files) of service_config.
  type: list
  elements: dict
"""

import hashlib  # noqa: E402
import importlib.metadata  # noqa: E402
import importlib.util  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from ansible.errors import AnsibleLookupError  # noqa: E402
from ansible.plugins.lookup import LookupBase  # noqa: E402

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "module_utils" / "steadyrack"
AGENT_FILES = REPOSITORY / "roles" / "node_agent" / "files"

NODE_DIRECTORY = "/usr/lib/steadyrack"
REPAIR = "python3 -m pip uninstall -y pynvml && python3 -m pip install --force-reinstall nvidia-ml-py"


def binding() -> Path:
    """pynvml.py of nvidia-ml-py in this interpreter, which must also be what `import pynvml` finds."""
    try:
        distribution = importlib.metadata.distribution("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        raise AnsibleLookupError(
            "The controller's Python lacks nvidia-ml-py, whose pynvml.py goes to the nodes. "
            "Install the project's requirements.txt."
        ) from None
    path = Path(str(distribution.locate_file("pynvml.py")))
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None or not path.is_file() or not path.samefile(found.origin):
        seen = found.origin if found else "nothing"
        raise AnsibleLookupError(
            f"The controller's Python would import pynvml from {seen}, not from nvidia-ml-py ({path}): "
            f"the old package of that name stands before it. Repair: {REPAIR}"
        )
    return path


def sources() -> list[tuple[str, Path, str]]:
    """Path on the node, file here, mode."""
    package = [(f"{NODE_DIRECTORY}/steadyrack/{path.name}", path, "0644") for path in sorted(PACKAGE.glob("*.py"))]
    return [
        *package,
        (f"{NODE_DIRECTORY}/pynvml.py", binding(), "0644"),
        (f"{NODE_DIRECTORY}/agent.py", AGENT_FILES / "agent.py", "0755"),
        ("/usr/bin/steadyrack", AGENT_FILES / "steadyrack", "0755"),
    ]


def entry(path: str, source: Path, mode: str, with_content: bool) -> dict[str, Any]:
    """One file for service_config. The watch over the clock never ends by itself: it is restarted for new code."""
    text = source.read_text(encoding="utf-8")
    described: dict[str, Any] = {"path": path, "mode": mode, "owner": "root", "group": "root"}
    if source.name == "pynvml.py":
        # Not read by the watch.
        described["on_change"] = "none"
        described["no_diff"] = True  # eight thousand lines of somebody else's, which would hide ours
    if with_content:
        return {**described, "content": text}
    return {**described, "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest()}


class LookupModule(LookupBase):
    """See DOCUMENTATION."""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        if terms:
            raise AnsibleLookupError(f"payload takes no terms, only content_for; seen {terms}")
        wanted = set(self.get_option("content_for"))
        return [entry(path, source, mode, path in wanted) for path, source, mode in sources()]
