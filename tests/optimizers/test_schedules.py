"""Each schedule against the scheduler of torch that it names."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from meta500.errors import UserError
from meta500.optimizers import Schedule, create_schedule, schedule_names, schedules

BASE = 0.3


def torch_rates(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates its own call inside SequentialLR
        scheduler = make(optimizer)
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return rates


CASES = {
    "constant": (schedules.constant(BASE), lambda o: lr_scheduler.LambdaLR(o, lambda s: 1.0), 20),
    "step": (
        schedules.step_decay(BASE, every=4, factor=0.3),
        lambda o: lr_scheduler.StepLR(o, 4, 0.3),
        30,
    ),
    "multi-step": (
        schedules.multi_step(BASE, [3, 4, 11]),
        lambda o: lr_scheduler.MultiStepLR(o, [3, 4, 11]),
        30,
    ),
    "exponential": (
        schedules.exponential(BASE, 0.9),
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        60,
    ),
    "cosine": (
        schedules.cosine(BASE, steps=25),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 25),
        25,
    ),
    "cosine-minimum": (
        schedules.cosine(BASE, steps=25, minimum=0.01),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 25, 0.01),
        26,
    ),
    "linear": (
        schedules.linear(BASE, steps=7),
        lambda o: lr_scheduler.LinearLR(o, total_iters=7),
        20,
    ),
    "linear-down": (
        schedules.linear(BASE, steps=7, start=1.0, end=0.2),
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, 7),
        20,
    ),
    "warmup": (
        schedules.warmup(schedules.exponential(BASE, 0.9), steps=5, start=0.25),
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.LinearLR(o, 0.25, 1.0, 5), lr_scheduler.ExponentialLR(o, 0.9)]
        ),
        30,
    ),
    "sequence": (
        schedules.sequence(
            [
                schedules.linear(BASE, steps=5, start=0.1),
                schedules.cosine(BASE, steps=10),
                schedules.constant(0.0),
            ],
            [5, 15],
        ),
        lambda o: lr_scheduler.SequentialLR(
            o,
            [
                lr_scheduler.LinearLR(o, 0.1, 1.0, 5),
                lr_scheduler.CosineAnnealingLR(o, 10),
                lr_scheduler.LambdaLR(o, lambda s: 0.0),
            ],
            [5, 15],
        ),
        25,
    ),
    "one-cycle": (
        schedules.one_cycle(BASE, steps=40),
        lambda o: lr_scheduler.OneCycleLR(o, BASE, 40, cycle_momentum=False),
        40,
    ),
    "one-cycle-options": (
        schedules.one_cycle(BASE, steps=30, rise=0.5, start_divisor=10, end_divisor=7),
        lambda o: lr_scheduler.OneCycleLR(
            o, BASE, 30, pct_start=0.5, div_factor=10, final_div_factor=7, cycle_momentum=False
        ),
        30,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_torch(case):
    schedule, make, steps = CASES[case]
    expected = torch_rates(make, steps)
    assert [schedule(step) for step in range(steps)] == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(length=st.integers(1, 1000), beyond=st.integers(0, 1000), low=st.floats(0, 1))
@settings(max_examples=50)
def test_finished_schedules_stay_where_they_ended(length, beyond, low):
    assert schedules.cosine(1.0, length, minimum=low)(length + beyond) == pytest.approx(low)
    assert schedules.linear(2.0, length, end=low)(length + beyond) == pytest.approx(2 * low)
    one = schedules.one_cycle(1.0, length + 10)
    assert one(length + 10 + beyond) == one(length + 9) == pytest.approx(1 / 25 / 1e4)


def test_schedules_are_told_apart_by_their_text():
    assert schedules.cosine(0.1, 10) == schedules.cosine(0.1, 10)
    assert schedules.cosine(0.1, 10) != schedules.cosine(0.1, 11)
    assert str(schedules.warmup(schedules.cosine(0.1, 10), 3).text) == (
        "warmup(cosine(0.1, 10, 0.0), 3, 0.0)"
    )


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: schedules.constant(-0.1), "constant: learning_rate = -0.1"),
        (lambda: schedules.cosine(float("nan"), 5), "cosine: learning_rate = nan"),
        (lambda: schedules.cosine(0.1, 0), "cosine: steps = 0 .* whole number of steps"),
        (lambda: schedules.cosine(0.1, 2.5), "cosine: steps = 2.5"),
        (lambda: schedules.step_decay(0.1, True), "step_decay: every = True"),
        (lambda: schedules.multi_step(0.1, [5, 5]), r"milestones = \[5, 5\] .* increasing"),
        (lambda: schedules.exponential(0.1, float("inf")), "exponential: factor = inf"),
        (lambda: schedules.sequence([schedules.constant(1)], [3]), "1 schedules need 0 milestones"),
        (lambda: schedules.one_cycle(0.1, 40, start_divisor=0), "start_divisor = 0 .* above 0"),
        (lambda: schedules.one_cycle(0.1, 2), "rise = 0.3 is not valid for 2 steps"),
        (lambda: schedules.one_cycle(0.1, 10, rise=1.0), "rise = 1.0 is not valid for 10 steps"),
        (lambda: schedules.constant(0.1)(-1), "there is no step -1"),
    ],
)
def test_bad_values(make, pattern):
    with pytest.raises(UserError, match=pattern):
        make()


def test_by_name():
    assert create_schedule("cosine", 0.1, steps=7) == schedules.cosine(0.1, 7)
    assert create_schedule("one-cycle", 0.1, steps=40)(0) == pytest.approx(0.1 / 25)
    assert {"constant", "step", "multi-step", "linear"} < set(schedule_names())
    with pytest.raises(UserError, match=r"unknown schedule 'cosin'.*'cosine'"):
        create_schedule("cosin", 0.1)
    with pytest.raises(UserError, match=r"option of schedule 'cosine' 'step'.*minimum, steps"):
        create_schedule("cosine", 0.1, step=5)
    with pytest.raises(UserError, match="schedule 'cosine' needs the option 'steps'"):
        create_schedule("cosine", 0.1)


def test_any_function_of_the_step_will_do():
    composed = schedules.warmup(lambda step: 1.0 / (1 + step), steps=2)
    assert isinstance(composed, Schedule)
    assert [composed(step) for step in range(4)] == pytest.approx([0.0, 0.25, 1 / 3, 0.25])
