"""Operators of one's own, from Python functions or C++ files, on every backend.

::

    @custom.operator("my.ops", outputs={"y": "x"})
    def Swish(x, *, beta: float = 1.0):
        return x / (1 + np.exp(-beta * x))


    @Swish.backward
    def swish_backward(call, d_y): ...


    builder.add(Swish, x, beta=2.0)

See ``docs/custom-operators.md``; :func:`meta500.check_operator` validates one.
"""

from meta500.custom.definition import CustomOperator, operator, remove
from meta500.custom.loading import load_operators

__all__ = ["CustomOperator", "load_operators", "operator", "remove"]
