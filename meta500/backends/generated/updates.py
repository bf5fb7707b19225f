"""Optimizer steps as stages over the packed parameters, gradients and slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meta500.backends.generated.affine import indices
from meta500.backends.generated.expressions import Access, Expr, Load, add, call, div, mul, sub
from meta500.backends.generated.ir import INPUT, PARAMETER, REAL, SET, Axis, Program, Stage, Tensor

Values = dict[str, Expr]


@dataclass(frozen=True)
class Update:
    """An optimizer's rule.

    Attributes:
        slots: names of its state arrays, each like the parameters.
        settings: names of the numbers that it takes every step.
        rule: from parameter ``x``, gradient ``g``, slots and settings to the new slots, in order, and the
            new ``x``; every new value is seen by the expressions after it.
    """

    slots: tuple[str, ...]
    settings: tuple[str, ...]
    rule: tuple[tuple[str, Callable[[Values], Expr]], ...]


def _adam_step(v: Values) -> Expr:
    return sub(
        v["x"], mul(v["step"], div(v["first_moment"], add(call("sqrt", v["second_moment"]), v["epsilon"])))
    )


_MOMENTS: tuple[tuple[str, Callable[[Values], Expr]], ...] = (
    (
        "first_moment",
        lambda v: add(mul(v["beta1"], v["first_moment"]), mul(v["share1"], v["g"])),
    ),
    (
        "second_moment",
        lambda v: add(mul(v["beta2"], v["second_moment"]), mul(v["share2"], mul(v["g"], v["g"]))),
    ),
)

# ``share1`` = 1 - beta1 and ``share2`` = 1 - beta2 come from the caller: float32 would
# lose digits of the latter. The bias corrections of Adam are folded into
# ``step`` = rate * sqrt(1 - beta2^t) / (1 - beta1^t) and
# ``epsilon`` = epsilon * sqrt(1 - beta2^t), computed once per step by the caller.
UPDATES: dict[str, Update] = {
    "sgd": Update((), ("rate",), (("x", lambda v: sub(v["x"], mul(v["rate"], v["g"]))),)),
    "momentum": Update(
        ("velocity",),
        ("rate", "momentum"),
        (
            ("velocity", lambda v: add(mul(v["momentum"], v["velocity"]), v["g"])),
            ("x", lambda v: sub(v["x"], mul(v["rate"], v["velocity"]))),
        ),
    ),
    "adam": Update(
        ("first_moment", "second_moment"),
        ("step", "epsilon", "beta1", "beta2", "share1", "share2"),
        (*_MOMENTS, ("x", _adam_step)),
    ),
    "adamw": Update(
        ("first_moment", "second_moment"),
        ("step", "epsilon", "beta1", "beta2", "share1", "share2", "decay"),
        (
            *_MOMENTS,
            # Decoupled weight decay (Loshchilov and Hutter, 2019); decay = rate * weight_decay.
            ("x", lambda v: sub(_adam_step(v), mul(v["decay"], v["x"]))),
        ),
    ),
}
_L2 = "_l2"


def _with_weight_decay(update: Update) -> Update:
    """``update`` of g + weight_decay * x, the gradient with that of weight_decay / 2 * |x|^2."""
    *before, last = (target for target, _ in update.rule)
    assert last == "x" and "x" not in before, "every use of g takes the x from before the step"

    def decayed(rule: Callable[[Values], Expr]) -> Callable[[Values], Expr]:
        return lambda v: rule({**v, "g": add(v["g"], mul(v["weight_decay"], v["x"]))})

    return Update(
        update.slots,
        (*update.settings, "weight_decay"),
        tuple((target, decayed(rule)) for target, rule in update.rule),
    )


# Updates of their own, so that those without weight decay do not pay for it.
UPDATES.update({name + _L2: _with_weight_decay(UPDATES[name]) for name in ("sgd", "momentum", "adam")})


def update_kind(optimizer: str, weight_decay: float) -> str:
    """The name in :data:`UPDATES` of an optimizer's rule with this weight decay.

    The slots do not depend on the weight decay. That of adamw is decoupled and part of its one rule.
    """
    return optimizer + _L2 if weight_decay and optimizer + _L2 in UPDATES else optimizer


def slot_tensor(name: str) -> str:
    """The tensor of one slot."""
    return f"optimizer.{name}"


def with_update(program: Program, kind: str, parameters: str, gradients: str) -> Program:
    """``program`` followed by one step of an optimizer, in place on its packed parameters."""
    update = UPDATES[kind]
    size = program.tensors[parameters].size
    result = replace(program, tensors=dict(program.tensors), stages=list(program.stages))
    at = Access(parameters, indices(["e"]))
    values: Values = {"x": Load(at), "g": Load(Access(gradients, indices(["e"])))}
    for name in update.slots:
        result.tensors[slot_tensor(name)] = Tensor(slot_tensor(name), (size,), REAL, PARAMETER)
        values[name] = Load(Access(slot_tensor(name), indices(["e"])))
    for name in update.settings:
        result.tensors[slot_tensor(name)] = Tensor(slot_tensor(name), (), REAL, INPUT)
        values[name] = Load(Access(slot_tensor(name), ()))
    for target, rule in update.rule:
        write = at if target == "x" else Access(slot_tensor(target), indices(["e"]))
        name = result.unique_stage(f"{kind}.{target}")
        result.stages.append(Stage(name, f"optimizer {kind}", (Axis("e", size),), write, rule(values), SET))
        if result.exchange is not None:
            result.exchange = replace(result.exchange, after=(*result.exchange.after, name))
    return result
