# SPDX-License-Identifier: BSD-2-Clause
"""What the controller draws from what the nodes answered. Never copied to a node: matplotlib may be used here."""
