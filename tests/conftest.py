"""Paths for every test: our folders as Ansible would see them, and the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
MODULE_UTILS = REPOSITORY / "module_utils"

for folder in (REPOSITORY / "library", REPOSITORY / "filter_plugins", REPOSITORY / "lookup_plugins"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

# What `module_utils = module_utils` in ansible.cfg does for modules on a node: the import in our modules,
# `from ansible.module_utils.steadyrack.x import y`, then works unchanged. (Checks against real hosts run
# without Ansible's Python package in some environments.)
try:
    import ansible.module_utils as ansible_module_utils
except ImportError:
    pass
else:
    if str(MODULE_UTILS) not in ansible_module_utils.__path__:
        ansible_module_utils.__path__.append(str(MODULE_UTILS))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return REPOSITORY
