"""The node whose tools are small executables; see fake_node.py."""

from fake_node import node

__all__ = ["node"]
