"""A whole layer-4 program that trains a network: data, passes, optimizer, epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meta500.backends.generated.affine import Affine, indices
from meta500.backends.generated.exaslang.bodies import Body, whole
from meta500.backends.generated.exaslang.pictures import Picture
from meta500.backends.generated.exaslang.translate import (
    BACKWARD,
    FORWARD,
    LOSS,
    Translation,
    declared_once,
    elements,
    matrix,
    number,
    translate,
)
from meta500.backends.generated.exaslang.tree import (
    INT,
    REAL,
    Assignment,
    Binary,
    Call,
    Comment,
    Declaration,
    Element,
    Evaluate,
    Expression,
    FieldAccess,
    Function,
    Integer,
    Name,
    Native,
    Number,
    Print,
    Program,
    Repeat,
    Statement,
    Text,
)
from meta500.backends.generated.exaslang.variant import Variant
from meta500.backends.generated.expressions import Access, Load
from meta500.backends.generated.ir import PARAMETER
from meta500.backends.generated.ir import Program as Stages
from meta500.backends.generated.updates import UPDATES, Values
from meta500.errors import UserError

TRAINING, VALIDATION = "training", "validation"
WEIGHTS, TRAINED = "weights.bin", "trained.bin"


@dataclass(frozen=True)
class Training:
    """How a program trains.

    Attributes:
        epochs: passes over the training data.
        batches: training batches per epoch.
        validation: validation batches after every epoch, 0 for none.
        update: name in ``updates.UPDATES`` of the optimizer's rule.
        hyper: learning_rate, momentum, beta1, beta2, epsilon, weight_decay.
        every_step: whether the loss of every step is printed, not that of every epoch.
    """

    epochs: int
    batches: int
    validation: int
    update: str
    hyper: Mapping[str, float]
    every_step: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of the network in the program.

    Attributes:
        name: in the network.
        variable: in the program.
        shape: of the tensor.
        offset: elements before it in the files of weights.
    """

    name: str
    variable: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Trained:
    """A program with what its files must know.

    Attributes:
        tree: the program.
        translation: fields, variables and levels.
        parameters: in the order of the files of weights.
        inputs: fields that are loaded, by the network's input.
    """

    tree: Program
    translation: Translation
    parameters: tuple[Parameter, ...]
    inputs: dict[str, Picture]

    def parts(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """The numbers of a file of weights by parameter."""
        return {p.name: weights[p.offset : p.offset + p.size].reshape(p.shape) for p in self.parameters}


def training_program(stages: Stages, variant: Variant, training: Training) -> Trained:
    """The program of a network's training stages.

    Args:
        stages: loss and gradients, joined but not packed.
        variant: what runs it.
        training: how long, and by which rule.

    Raises:
        UserError: what layer-4 code can't express.
    """
    variant = variant.checked()
    result = translate(stages, variant)
    top = result.top
    loss = result.tensors.arrays[stages.outputs["loss"]].variable
    if len(stages.outputs) != 1 or stages.updates:
        raise UserError(
            f"network '{stages.name}': statistics that a training step updates have no layer-4 code: "
            f"{', '.join(stages.updates) or ', '.join(stages.outputs)}"
        )
    parameters = _parameters(stages, result)
    inputs = result.inputs(stages)
    rule = _Rule(training, result, stages, parameters)
    functions = [
        Function("InitWeights", top, tuple(_weights("meta500_load", WEIGHTS, parameters))),
        _load_batch("LoadBatch", TRAINING, inputs, top, ("epoch", "step")),
        Function("ForwardPass", top, declared_once(result.phases[FORWARD])),
        Function("LossFunction", top, declared_once(result.phases[LOSS])),
        Function("BackwardPass", top, declared_once(result.phases[BACKWARD])),
        Function("Optimization", top, declared_once(rule.statements())),
        Function("SaveWeights", top, tuple(_weights("meta500_save", TRAINED, parameters))),
    ]
    if training.validation:
        functions.insert(2, _load_batch("LoadValidation", VALIDATION, inputs, top, ("step",)))
    functions.append(Function("Application", None, declared_once(_application(training, top, loss))))
    variables = [*result.variables(), *rule.variables(), number("epoch_loss")]
    if training.validation:
        variables.append(number("validation_loss"))
    tree = Program(tuple(result.layouts(variant)), tuple(result.fields()), tuple(variables), tuple(functions))
    return Trained(tree, result, parameters, inputs)


def _parameters(stages: Stages, result: Translation) -> tuple[Parameter, ...]:
    for name, tensor in stages.tensors.items():
        if tensor.role == PARAMETER and name in result.tensors.arrays and name not in stages.gradients:
            raise UserError(
                f"network '{stages.name}': '{name}' is not trained; layer-4 programs load what they train: "
                "make it a parameter"
            )
    found, offset = [], 0
    for name in stages.gradients:
        if name not in result.tensors.arrays:
            raise UserError(
                f"network '{stages.name}': the loss does not depend on parameter '{name}', leave it out"
            )
        array = result.tensors.arrays[name]
        if not array.shape:
            raise UserError(
                f"network '{stages.name}': parameter '{name}' is a single number; layer-4 programs load "
                "matrices: give it the shape (1, 1, 1)"
            )
        found.append(Parameter(name, array.variable, array.shape, offset))
        offset += array.size
    return tuple(found)


def _weights(function: str, file: str, parameters: Sequence[Parameter]) -> list[Statement]:
    total = Integer(sum(p.size for p in parameters))
    return [
        Evaluate(Call(function, (Text(file), Integer(p.offset), Name(p.variable), Integer(p.size), total)))
        for p in parameters
    ]


def _load_batch(
    name: str, part: str, inputs: Mapping[str, Picture], top: int, given: tuple[str, ...]
) -> Function:
    """Fills the fields of the inputs from the data in memory."""
    statements: list[Statement] = []
    for position, picture in enumerate(inputs.values()):
        target = FieldAccess(picture.field, picture.level, Name("batch"), Name("channel"))
        arguments: list[Expression] = [
            *(Name(n) for n in given),
            # The cell of the block, and a position in the block: the generator's positions are no pixels.
            *(Name(n) for n in ("batch", "channel", "i0", "i1", "vf_cellCenter_x", "vf_cellCenter_y")),
        ]
        call = Call(f"meta500_{part}_{position}", tuple(arguments))
        statements.append(elements(picture, Assignment(target, call)))
    return Function(name, top, tuple(statements), given)


def initializations() -> list[Statement]:
    """What every program begins with."""
    names = ("initGlobals", "initDomain", "initFieldsWithZero", "initGeometry")
    return [Evaluate(Call(name)) for name in names]


def _application(training: Training, top: int, loss: str) -> list[Statement]:
    def call(name: str, *arguments: str) -> Evaluate:
        return Evaluate(Call(name, tuple(Name(a) for a in arguments), top))

    def plain(name: str) -> Evaluate:
        return Evaluate(Call(name))

    def timer(name: str) -> Evaluate:
        return Evaluate(Call(name, (Text("training"),)))

    steps: list[Statement] = [
        call("LoadBatch", "epoch", "step"),
        timer("startTimer"),
        call("ForwardPass"),
        call("LossFunction"),
        call("BackwardPass"),
        call("Optimization"),
        timer("stopTimer"),
        Assignment(Name("epoch_loss"), Name(loss), "+="),
    ]
    if training.every_step:
        steps.append(
            Print((Text("epoch"), Name("epoch"), Text("step"), Name("step"), Text("loss"), Name(loss)))
        )
    epoch: list[Statement] = [
        Assignment(Name("epoch_loss"), Number(0.0)),
        Declaration("step", INT, Integer(0)),
        Repeat(training.batches, "step", tuple(steps)),
        Assignment(Name("epoch_loss"), Integer(training.batches), "/="),
        Print((Text("epoch"), Name("epoch"), Text("training_loss"), Name("epoch_loss"))),
    ]
    if training.validation:
        epoch += [
            Assignment(Name("validation_loss"), Number(0.0)),
            Repeat(
                training.validation,
                "step",
                (
                    call("LoadValidation", "step"),
                    call("ForwardPass"),
                    call("LossFunction"),
                    Assignment(Name("validation_loss"), Name(loss), "+="),
                ),
            ),
            Assignment(Name("validation_loss"), Integer(training.validation), "/="),
            Print((Text("epoch"), Name("epoch"), Text("validation_loss"), Name("validation_loss"))),
        ]
    return [
        *initializations(),
        Native("std::cout.precision(17)"),
        Evaluate(Call("meta500_read")),
        call("InitWeights"),
        Declaration("epoch", INT, Integer(0)),
        Repeat(training.epochs, "epoch", tuple(epoch)),
        call("SaveWeights"),
        plain("printAllTimers"),
        plain("destroyGlobals"),
    ]


class _Rule:
    """The optimizer's step over all parameters, from the rule that the C++ printer uses too."""

    def __init__(
        self, training: Training, result: Translation, stages: Stages, parameters: Sequence[Parameter]
    ) -> None:
        self.update, self.hyper = UPDATES[training.update], training.hyper
        self.result, self.parameters = result, parameters
        self.gradients = {
            p.name: result.tensors.arrays[stages.gradients[p.name]].variable for p in parameters
        }
        self.settings = {name: result.names.own(f"setting_{name}") for name in self.update.settings}
        self.slots = {
            (slot, p.name): result.names.own(f"{p.variable}_{slot}")
            for p in parameters
            for slot in self.update.slots
        }
        self.powers = {}
        if "step" in self.update.settings:
            self.powers = {name: result.names.own(f"power_{name}") for name in ("beta1", "beta2")}

    def variables(self) -> list[Declaration]:
        """Settings and state."""
        found = [number(name, self._start(key)) for key, name in self.settings.items()]
        found += [number(name, 1.0) for name in self.powers.values()]
        sizes = {p.name: p.size for p in self.parameters}
        return found + [matrix(name, sizes[parameter]) for (_, parameter), name in self.slots.items()]

    def _start(self, setting: str) -> float:
        h = self.hyper
        return {
            "rate": h["learning_rate"],
            "momentum": h["momentum"],
            "beta1": h["beta1"],
            "beta2": h["beta2"],
            "share1": 1 - h["beta1"],
            "share2": 1 - h["beta2"],
            "decay": h["learning_rate"] * h["weight_decay"],
            "weight_decay": h["weight_decay"],
            "step": h["learning_rate"],
            "epsilon": h["epsilon"],
        }[setting]

    def statements(self) -> list[Statement]:
        """One step."""
        statements: list[Statement] = []
        if self.powers:
            statements += self._bias_correction()
        for parameter in self.parameters:
            statements += [
                Comment(parameter.name),
                Declaration("element", INT, Integer(0)),
                Repeat(parameter.size, "element", tuple(self._element(parameter))),
            ]
        return statements

    def _bias_correction(self) -> list[Statement]:
        """Kingma and Ba (2015), the more efficient order of section 2: both corrections in the step."""
        first, second = (Name(self.powers[key]) for key in ("beta1", "beta2"))
        root = Name("correction")
        return [
            Assignment(first, Name(self.settings["beta1"]), "*="),
            Assignment(second, Name(self.settings["beta2"]), "*="),
            Declaration(root.name, REAL, Call("sqrt", (Binary("-", Number(1.0), second),))),
            Assignment(
                Name(self.settings["step"]),
                Binary(
                    "/",
                    Binary("*", Number(self.hyper["learning_rate"]), root),
                    Binary("-", Number(1.0), first),
                ),
            ),
            Assignment(Name(self.settings["epsilon"]), Binary("*", Number(self.hyper["epsilon"]), root)),
        ]

    def _element(self, parameter: Parameter) -> list[Statement]:
        """The new value of one element of a parameter and its state."""
        variables = {"x": parameter.variable, "g": self.gradients[parameter.name]}
        variables |= {slot: self.slots[slot, parameter.name] for slot in self.update.slots}
        values: Values = {key: Load(Access(name, indices(["element"]))) for key, name in variables.items()}
        values |= {key: Load(Access(name, ())) for key, name in self.settings.items()}

        def load(one: Load) -> Expression:
            if not one.access.indices:
                return Name(one.access.tensor)
            return Element(one.access.tensor, Integer(0), Name("element"))

        def index(one: Affine) -> Expression:
            return whole(one, {})

        statements: list[Statement] = []
        for target, rule in self.update.rule:
            body = Body(load, index, lambda base: base)
            body.assign(Element(variables[target], Integer(0), Name("element")), rule(values))
            statements += body.statements
        return statements
