"""The numpy rules: forward functions and their vector-Jacobian products, one module per family."""

from meta500.backends.rules import RuleTable

rules = RuleTable("numpy")

# The modules register themselves in the table above, hence after it.
from meta500.backends.numpy.operators import (  # noqa: E402, F401
    activation,
    constant,
    convolution,
    dropout,
    elementwise,
    linear,
    loss,
    movement,
    normalization,
    padding,
    pooling,
    reduction,
    resize,
)
