"""The differential debugger: one network on two backends, node by node, and the first node that differs.

Both backends are compared in two ways. *Whole*: each runs the network by itself and every value is compared;
rounding grows on the way, so the tolerance grows with the longest chain of operators before a value. *Alone*:
every node is run by itself on both backends with the same inputs (those of ``a``), and its vector-Jacobian
product with the same cotangents. Only the second way can tell a fault from amplified rounding, so only it
names a node.
"""

from meta500.benchmarks.differential.report import Difference, Finding
from meta500.benchmarks.differential.search import diff

__all__ = ["Difference", "Finding", "diff"]
