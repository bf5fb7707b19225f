"""A ticker listens to the events of a training run; it overrides only those it needs."""

import numpy as np

import meta500
from meta500.metrics import Runner, Ticker


class GradientNorm(Ticker):
    """Keeps the norm of all gradients of every step, and stops when it falls below a limit."""

    def __init__(self, limit):
        self.limit, self.norms = limit, []

    def after_optimizer_step(self, state):
        gradients = state.network.fetch_tensors([g for _, g in state.network.gradient()])
        self.norms.append(np.sqrt(sum(float((g**2).sum()) for g in gradients)))

    def abort_after_optimizer_step(self, state):
        return f"gradient norm below {self.limit}" if self.norms[-1] < self.limit else None


train_set, test_set = meta500.datasets.load("digits")
ticker = GradientNorm(limit=0.2)
with meta500.network(meta500.models.digits_cnn(batch="N"), backend="numpy") as network:
    optimizer = meta500.optimizers.Momentum(network, learning_rate=0.05)
    summary = Runner(network, optimizer, train_set, test_set, tickers=[ticker]).run(epochs=2)
print(f"{len(ticker.norms)} steps, gradient norm {ticker.norms[0]:.3f} to {ticker.norms[-1]:.3f}")
print(summary.abort_reason or "finished")
