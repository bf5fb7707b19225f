"""An optimizer of your own is its update rule; it runs on every backend.

SignSGD (Bernstein et al., 2018): x <- x - rate * sign(g). Here it is trained in lock-step against plain
gradient descent, and the distance between their parameters is printed.
"""

import meta500
from meta500.optimizers import SGD, UpdateRuleOptimizer, compare_optimizers


class SignSGD(UpdateRuleOptimizer):
    """x <- x - rate * sign(g)."""

    def update_rule(self, grad, old_param, name):
        return old_param - self.rate * self.xp.sign(grad)


train_set, _ = meta500.datasets.load("digits")
model = meta500.models.mlp(batch="N", hidden=(32,))
with meta500.network(model, backend="numpy") as a, meta500.network(model, backend="torch") as b:
    trajectories = compare_optimizers(
        SignSGD(a, learning_rate=1e-3), SGD(b, learning_rate=0.1), train_set, steps=20, batch_size=64
    )
print(trajectories.to_frame().tail())
