# SPDX-License-Identifier: BSD-2-Clause
"""What steadyrack knows of a node: readers, comparers and setters in pure Python.

The same files serve the Ansible modules (as ``ansible.module_utils.steadyrack``) and the
``steadyrack`` command on the node (as plain ``steadyrack``). They import each other relatively,
use the standard library and, in ``nvml`` alone, pynvml. Python 3.8 is enough.
"""
