"""A small network with an optimizer, written in numpy alone, for the tests of the training loop."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from meta500.datasets import Dataset
from meta500.metrics.events import EVENTS, QUESTIONS, Ticker
from meta500.metrics.position import Position, position
from meta500.metrics.run import RunFolder
from meta500.metrics.runner import Runner


class LinearNetwork:
    """logits = image W + b, loss = mean cross-entropy; float64; the contract of a Network as far as needed."""

    backend = "fake"
    mode = "eager"
    device = "cpu"
    threads = 1

    def __init__(self, features=4, classes=3, batch="N", loss_reduction="mean"):
        kinds = {"image": (np.float32, (batch, features)), "label": (np.int64, (batch,))}
        self.inputs = {k: SimpleNamespace(dtype=np.dtype(d), shape=s) for k, (d, s) in kinds.items()}
        self.outputs = {"logits": None, "loss": None}
        self.model = SimpleNamespace(name="linear")
        rng = np.random.default_rng(1)
        self.parameters = {
            "W": 0.1 * rng.standard_normal((features, classes)),
            "b": np.zeros(classes),
        }
        self.gradients = {}
        self.loss_reduction = loss_reduction
        self.asked = []
        self.synchronized = 0

    def forward(self, inputs):
        logits = inputs["image"].astype(np.float64) @ self.parameters["W"] + self.parameters["b"]
        shifted = logits - logits.max(axis=1, keepdims=True)
        logp = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        losses = -logp[np.arange(len(logits)), inputs["label"]]
        reduce = np.mean if self.loss_reduction == "mean" else np.sum
        return {"logits": logits, "loss": np.asarray(reduce(losses))}, np.exp(logp)

    def inference(self, inputs, outputs=None):
        self.asked.append(("inference", outputs))
        found, _ = self.forward(inputs)
        return {name: found[name] for name in outputs or found}

    def inference_and_backprop(self, inputs, loss="loss", outputs=None):
        found, p = self.forward(inputs)
        p[np.arange(len(p)), inputs["label"]] -= 1
        p /= len(p)
        self.gradients = {"W": inputs["image"].astype(np.float64).T @ p, "b": p.sum(axis=0)}
        return {name: found[name] for name in outputs or found}

    def get_params(self):
        return list(self.parameters)

    def gradient(self):
        return [(name, f"grad/{name}") for name in self.parameters]

    def fetch_tensors(self, names):
        both = {**self.parameters, **{f"grad/{k}": v for k, v in self.gradients.items()}}
        return [both[name].copy() for name in names]

    def synchronize(self):
        self.synchronized += 1


class Sgd:
    """A reference-like optimizer with one hyper-parameter."""

    def __init__(self, network, learning_rate=0.5):
        self.network, self.learning_rate = network, learning_rate
        self.rates = []

    def train(self, inputs, outputs=None):
        result = self.network.inference_and_backprop(inputs, outputs=outputs)
        self.rates.append(self.learning_rate)
        for name, gradient in self.network.gradients.items():
            self.network.parameters[name] = self.network.parameters[name] - self.learning_rate * gradient
        return result


class NativeSgd:
    """As a backend's own optimizer: one opaque ``train``, no gradients to be seen, no attributes."""

    def __init__(self, network):
        self._sgd = Sgd(network)

    def train(self, inputs, outputs=None):
        result = self._sgd.train(inputs, outputs)
        self._sgd.network.gradients = {}
        return result


class Recorder(Ticker):
    """Notes every event; ``actions`` maps an event to a function of the state that is called there."""

    def __init__(self, log=None, name="", **actions):
        self.log = [] if log is None else log
        self.name, self.actions = name, actions

    def note(self, event, state):
        self.log.append(f"{self.name}{event}")
        return self.actions[event](state) if event in self.actions else None


for _event in EVENTS:
    setattr(Recorder, _event, lambda self, state, _event=_event: self.note(_event, state))


def make_dataset(n=20, seed=0, name="points"):
    """n points of 3 separable classes in 4 dimensions, with a float target beside the label."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, n)
    image = (2.0 * np.eye(4)[label] + 0.3 * rng.standard_normal((n, 4))).astype(np.float32)
    truth = rng.standard_normal((n, 3))
    return Dataset(name=name, inputs={"image": image, "label": label, "truth": truth})


def poison(made, step):
    """Make the parameter W, and with it loss and gradients, NaN from ``step`` on."""
    train = made.optimizer.train

    def poisoned(inputs, outputs=None):
        if made.state.step == step:
            made.network.parameters["W"][0, 0] = np.nan
        return train(inputs, outputs)

    made.optimizer.train = poisoned
    return made


@pytest.fixture(scope="session")
def fakes():
    """The classes above."""
    return SimpleNamespace(
        LinearNetwork=LinearNetwork,
        Sgd=Sgd,
        NativeSgd=NativeSgd,
        Recorder=Recorder,
        dataset=make_dataset,
        poison=poison,
        EVENTS=EVENTS,
        QUESTIONS=QUESTIONS,
    )


@pytest.fixture
def ticker_runner(fakes):
    """Makes a Runner of the small network with the tickers given."""

    def make(*tickers, train=10, test=7, optimizer=fakes.Sgd, **options):
        network = fakes.LinearNetwork()
        test_set = fakes.dataset(test, seed=1) if test else None
        options = {"batch_size": 4, **options}
        train_set = fakes.dataset(train) if isinstance(train, int) else train
        return Runner(network, optimizer(network), train_set, test_set, tickers=tickers, **options)

    return make


@pytest.fixture
def run_folder(tmp_path):
    """An empty run folder that is open for writing."""
    return RunFolder.create(tmp_path / "run", environment={}, command=["test"])


@pytest.fixture
def resumed(fakes, ticker_runner):
    """Runs 3 epochs of 3 steps with the tickers given, gone on with after step 5 of such a run."""
    kept = {}

    def keep(state):
        if state.step == 5:
            kept["position"] = Position.from_plain(json.loads(json.dumps(position(state).plain())))
            kept["parameters"] = {k: v.copy() for k, v in state.network.parameters.items()}

    whole = ticker_runner(fakes.Recorder(after_optimizer_step=keep)).run(3)

    def run(*tickers, **options):
        made = ticker_runner(*tickers, **options)
        made.network.parameters = kept["parameters"]
        summary = made.run(3, resume=kept["position"])
        assert summary.losses == whole.losses
        return summary

    return run
