"""Optimizers: the ladder to write one, reference optimizers, schedules, lock-step comparison.

::

    optimizer = meta500.optimizers.Adam(network, learning_rate=1e-3)
    for batch in batches:
        loss = optimizer.train(batch)["loss"]
"""

from __future__ import annotations

from meta500.backends.hyperparameters import Flag, LearningRate, Real
from meta500.optimizers import schedules
from meta500.optimizers.accelegrad import AcceleGrad
from meta500.optimizers.adam import Adam, AdamW
from meta500.optimizers.adaptive import AdaGrad, RMSProp
from meta500.optimizers.lockstep import Difference, Trajectories, compare_optimizers
from meta500.optimizers.optimizer import (
    GraphOptimizer,
    Optimizer,
    ThreeStepOptimizer,
    UpdateRuleOptimizer,
)
from meta500.optimizers.registry import create, names, options
from meta500.optimizers.schedules import Schedule, create_schedule, schedule_names
from meta500.optimizers.sgd import SGD, Momentum, Nesterov

__all__ = [
    "SGD",
    "AcceleGrad",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Difference",
    "Flag",
    "GraphOptimizer",
    "LearningRate",
    "Momentum",
    "Nesterov",
    "Optimizer",
    "RMSProp",
    "Real",
    "Schedule",
    "ThreeStepOptimizer",
    "Trajectories",
    "UpdateRuleOptimizer",
    "compare_optimizers",
    "create",
    "create_schedule",
    "names",
    "options",
    "schedule_names",
    "schedules",
]
