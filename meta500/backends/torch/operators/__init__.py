"""The torch rules: differentiable forward functions, one module per family."""

from meta500.backends.rules import RuleTable

rules = RuleTable("torch")

# The modules register themselves in the table above, hence after it.
from meta500.backends.torch.operators import (  # noqa: E402, F401
    activation,
    comparison,
    convolution,
    creation,
    elementwise,
    linear,
    loss,
    movement,
    normalization,
    pooling,
    reduction,
    resize,
)
