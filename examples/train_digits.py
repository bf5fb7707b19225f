"""Train a network on real digits, with accuracy, rows and plots in a run folder."""

import sys

import meta500
from meta500.metrics import RunFolder, Runner
from meta500.metrics.plots import plots_from_run
from meta500.metrics.tickers import AccuracyLimit, ProgressTicker, RowsTicker

train_set, test_set = meta500.datasets.load("digits")
model = meta500.models.digits_cnn(batch="N", seed=0)

with (
    RunFolder.create(command=sys.argv, seeds={"model": 0}) as folder,
    meta500.network(model, backend="torch") as network,
):
    optimizer = meta500.optimizers.Adam(network, learning_rate=1e-3)
    tickers = [ProgressTicker(), RowsTicker(folder), AccuracyLimit(0.97)]
    runner = Runner(network, optimizer, train_set, test_set, tickers=tickers, batch_size=64, folder=folder)
    summary = runner.run(epochs=20)
    network.current_model().save(folder.path / "digits.onnx")

plots_from_run(folder)
last = summary.epochs[-1]
print(f"test accuracy {100 * last.accuracy:.2f} % after {last.step} steps; results in {folder.path}")
