"""Each reference optimizer against torch's own and against its paper's equations, on both backends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from meta500.optimizers import (
    SGD,
    AcceleGrad,
    AdaGrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    RMSProp,
    create,
    names,
)

STEPS = 50
# name: (ours, our options, torch's, torch's options)
CASES = {
    "sgd": (SGD, {}, torch.optim.SGD, {}),
    "momentum": (Momentum, {}, torch.optim.SGD, {"momentum": 0.9}),
    "momentum-damped": (
        Momentum,
        {"momentum": 0.8, "dampening": 0.3},
        torch.optim.SGD,
        {"momentum": 0.8, "dampening": 0.3},
    ),
    "nesterov": (Nesterov, {}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (Adam, {}, torch.optim.Adam, {}),
    "adam-options": (
        Adam,
        {"beta1": 0.7, "beta2": 0.95, "epsilon": 1e-3},
        torch.optim.Adam,
        {"betas": (0.7, 0.95), "eps": 1e-3},
    ),
    "adamw": (AdamW, {}, torch.optim.AdamW, {"weight_decay": 0.01}),
    "adagrad": (AdaGrad, {}, torch.optim.Adagrad, {}),
    "adagrad-options": (
        AdaGrad,
        {"rate_decay": 0.1, "initial_sum": 0.2, "epsilon": 1e-3},
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-3},
    ),
    "rmsprop": (RMSProp, {}, torch.optim.RMSprop, {}),
    "rmsprop-centered": (RMSProp, {"centered": True}, torch.optim.RMSprop, {"centered": True}),
    "rmsprop-all": (
        RMSProp,
        {"centered": True, "momentum": 0.6, "decay": 0.9, "epsilon": 1e-4},
        torch.optim.RMSprop,
        {"centered": True, "momentum": 0.6, "alpha": 0.9, "eps": 1e-4},
    ),
}
RATE = 0.02


def assert_equal(actual: dict, expected: dict, tolerance: float = 1e-12) -> None:
    """Relative to each parameter's largest element, as the gradients' rounding errors are."""
    assert set(actual) == set(expected)
    for name, value in expected.items():
        a, b = np.asarray(actual[name]), np.asarray(value)
        assert np.isfinite(b).all()
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max(), name


def run_torch(cls, options, start, function, steps=STEPS):
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    optimizer = cls(list(parameters.values()), lr=RATE, **options)
    for _ in range(steps):
        with torch.no_grad():
            gradients = function({name: value.detach() for name, value in parameters.items()})[1]
        for name, value in parameters.items():
            value.grad = gradients[name].clone()
        optimizer.step()
    return {name: value.detach().numpy() for name, value in parameters.items()}


@pytest.mark.parametrize("weight_decay", [None, 0.1])
@pytest.mark.parametrize("case", CASES)
def test_equals_torch(*, case, weight_decay, backend, problem, make_network, starting_point):
    cls, options, torch_cls, torch_options = CASES[case]
    if weight_decay is not None:
        options = {**options, "weight_decay": weight_decay}
        torch_options = {**torch_options, "weight_decay": weight_decay}
    network = make_network(backend, problem)
    optimizer = cls(network, learning_rate=RATE, **options)
    for _ in range(STEPS):
        optimizer.train({})
    expected = run_torch(torch_cls, torch_options, starting_point("torch"), problem)
    assert_equal(network.params, expected)
    moved = np.abs(expected["layer.weight"] - starting_point("numpy")["layer.weight"]).max()
    assert moved > 1e-3  # a comparison of two optimizers that do nothing would prove nothing


# -- the papers, transcribed element by element ------------------------------------------------------


def sgd(x, g, t, s):
    return x - RATE * g


def momentum(x, g, t, s):  # Polyak: x_{t+1} = x_t - γ g_t + μ (x_t - x_{t-1})
    previous, s["x"] = s.get("x", x), x
    return x - RATE * g + 0.9 * (x - previous)


def nesterov(x, g, t, s):  # Sutskever: v' = μ v - γ g(look-ahead); x is the look-ahead point θ + μ v
    v = s.get("v", 0.0)
    theta = x - 0.9 * v
    s["v"] = 0.9 * v - RATE * g
    return (theta + s["v"]) + 0.9 * s["v"]


def adam(x, g, t, s):
    s["m"] = 0.9 * s.get("m", 0.0) + (1 - 0.9) * g
    s["v"] = 0.999 * s.get("v", 0.0) + (1 - 0.999) * g**2
    m_hat, v_hat = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.999**t)
    return x - RATE * m_hat / (math.sqrt(v_hat) + 1e-8)


def adamw(x, g, t, s):
    return adam(x, g, t, s) - RATE * 0.01 * x


def adagrad(x, g, t, s):
    s["G"] = s.get("G", 0.0) + g**2
    return x - RATE * g / (math.sqrt(s["G"]) + 1e-10)


def rmsprop(x, g, t, s):
    s["E"] = 0.99 * s.get("E", 0.0) + 0.01 * g**2
    return x - RATE * g / (math.sqrt(s["E"]) + 1e-8)


PAPERS = {f.__name__: f for f in (sgd, momentum, nesterov, adam, adamw, adagrad, rmsprop)}


def run_paper(rule, start, function):
    params = {name: value.copy() for name, value in start.items()}
    memory = {name: [{} for _ in range(value.size)] for name, value in params.items()}
    for t in range(1, STEPS + 1):
        gradients = function(params)[1]
        for name, value in params.items():
            new = [
                rule(float(x), float(g), t, s)
                for x, g, s in zip(value.flat, np.ravel(gradients[name]), memory[name], strict=True)
            ]
            params[name] = np.reshape(new, value.shape)
    return params


@pytest.mark.parametrize("name", PAPERS)
def test_equals_the_paper(name, backend, problem, make_network, starting_point):
    network = make_network(backend, problem)
    optimizer = create(name, network, learning_rate=RATE)
    for _ in range(STEPS):
        optimizer.train({})
    # Other operations in another order: rounding differs, and grows along 50 steps.
    expected = run_paper(PAPERS[name], starting_point("numpy"), problem)
    assert_equal(network.params, expected, 1e-11)


# -- AcceleGrad -----------------------------------------------------------------------------------------


def accelegrad(start, function, steps, *, diameter=1.0, bound=1.0, factor=1.0):
    """The paper's algorithm over one flat vector; returns y_T, the weighted mean and the points x."""
    shapes = {name: value.shape for name, value in start.items()}

    def split(vector):
        parts, at = {}, 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            parts[name], at = vector[at : at + size].reshape(shape), at + size
        return parts

    y = z = np.concatenate([value.ravel() for value in start.values()])
    total, mean, weights, points = 0.0, np.zeros_like(y), 0.0, []
    for t in range(steps):
        alpha = 1.0 if t <= 2 else (t + 1) / 4
        tau = 1 / alpha
        x = tau * z + (1 - tau) * y
        points.append(split(x))
        g = np.concatenate([np.ravel(part) for part in function(split(x))[1].values()])
        total += alpha**2 * float(g @ g)
        eta = factor * 2 * diameter / math.sqrt(bound**2 + total)
        z = z - alpha * eta * g
        y = x - eta * g
        mean, weights = mean + alpha * y, weights + alpha
    return split(y), split(mean / weights), points


@pytest.mark.parametrize(("diameter", "bound", "rate"), [(1.0, 1.0, 1.0), (3.0, 0.0, 0.5)])
def test_accelegrad_equals_the_paper(
    *, diameter, bound, rate, backend, problem, make_network, starting_point
):
    network = make_network(backend, problem)
    optimizer = AcceleGrad(network, rate, diameter=diameter, gradient_bound=bound, average=True)
    visited = []
    for _ in range(STEPS):
        optimizer.train({})
        visited.append(network.evaluated_at)
    y, mean, points = accelegrad(
        starting_point("numpy"), problem, STEPS, diameter=diameter, bound=bound, factor=rate
    )
    assert_equal(network.params, y, 1e-11)
    assert_equal(optimizer.averaged_parameters(), mean, 1e-11)
    for actual, expected in zip(visited, points, strict=True):
        assert_equal(actual, expected, 1e-11)


def test_accelegrad_converges_as_fast_as_promised(make_network):
    """The mean of the iterates comes down with 1/T² on a smooth convex loss, not with 1/T."""
    network = make_network()
    optimizer = AcceleGrad(network, diameter=10.0, average=True)
    gaps = {}
    for step in range(1, 801):
        optimizer.train({})
        if step in (100, 200, 400, 800):
            gaps[step] = float(network.function(optimizer.averaged_parameters())[0])
    for step in (100, 200, 400):
        assert gaps[2 * step] < gaps[step] / 3.5
    assert float(network.function(network.params)[0]) < 1e-6 * gaps[100]


def test_accelegrad_without_gradients_and_bound_stays(make_network, starting_point):
    def flat(params):
        return 0.0 * params["scale"], {name: 0.0 * x for name, x in params.items()}

    network = make_network(function=flat)
    optimizer = AcceleGrad(network, gradient_bound=0.0)
    for _ in range(5):
        optimizer.train({})
    assert_equal(network.params, starting_point("numpy"), 1e-15)


def test_accelegrad_norm_of_16_bit_gradients_does_not_overflow(make_network, starting_point):
    def steep(params):  # 300² is more than a float16 holds
        return params["scale"], {name: 300.0 + 0.0 * x for name, x in params.items()}

    network = make_network("torch", steep, "float16")
    AcceleGrad(network).train({})
    eta = 2.0 / math.sqrt(1.0 + 18 * 300.0**2)
    expected = {n: x - np.float16(eta * 300) for n, x in starting_point("numpy", "float16").items()}
    assert_equal(network.params, expected, 2e-3)


def test_accelegrad_on_plain_arrays_needs_its_evaluation_point(backend, starting_point, problem):
    from meta500.errors import UserError

    params = starting_point(backend)
    optimizer = AcceleGrad(None)
    for _ in range(STEPS):
        at = {name: optimizer.evaluation_point(value, name) for name, value in params.items()}
        params = optimizer.apply(at, problem(at)[1])
    assert_equal(params, accelegrad(starting_point("numpy"), problem, STEPS)[0], 1e-11)
    with pytest.raises(UserError, match=r"evaluation_point"):
        optimizer.apply(params, problem(params)[1])


# -- what holds for all of them ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", names())
def test_dtype_stays(name, dtype, backend, make_network):
    network = make_network(backend, dtype=dtype)
    optimizer = create(name, network, learning_rate=np.float64(0.01))
    for _ in range(3):
        optimizer.train({})
    arrays = [*network.params.values(), *(a for s in optimizer.state.values() for a in s.values())]
    assert {str(array.dtype).removeprefix("torch.") for array in arrays} == {dtype}


@pytest.mark.parametrize("name", names())
def test_arguments_are_not_changed(name, backend, starting_point, problem):
    params = starting_point(backend)
    optimizer = create(name, None)
    for _ in range(3):
        if isinstance(optimizer, AcceleGrad):
            params = {n: optimizer.evaluation_point(value, n) for n, value in params.items()}
        gradients = problem(params)[1]
        before = [np.array(np.asarray(value)) for value in [*params.values(), *gradients.values()]]
        new = optimizer.apply(params, gradients)
        after = [np.array(np.asarray(value)) for value in [*params.values(), *gradients.values()]]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert all(np.isfinite(np.asarray(value)).all() for value in new.values())
        params = new


@pytest.mark.parametrize("name", names())
def test_two_runs_are_bit_identical(name, backend, problem, make_network):
    results = []
    for _ in range(2):
        network = make_network(backend, problem)
        optimizer = create(name, network)
        losses = [optimizer.train({})["loss"].tobytes() for _ in range(10)]
        results.append((losses, [np.asarray(v).tobytes() for v in network.params.values()]))
    assert results[0] == results[1]


@pytest.mark.parametrize("name", names())
def test_float64_plain_arrays_equal_the_network(name, backend, starting_point, make_network):
    network = make_network(backend)
    trained, plain = create(name, network), create(name, None)
    params = starting_point(backend)
    for _ in range(5):
        trained.train({})
        if isinstance(plain, AcceleGrad):
            params = {n: plain.evaluation_point(value, n) for n, value in params.items()}
        params = plain.apply(params, network.function(params)[1])
    for key, value in network.params.items():
        assert np.array_equal(np.asarray(value), np.asarray(params[key]))


def test_constant_gradient_keeps_centered_rmsprop_finite():
    optimizer = RMSProp(None, 1e-9, centered=True, decay=0.5)
    params = {"x": np.linspace(-1, 1, 1001)}
    gradients = {"x": np.linspace(0.1, 3.7, 1001)}
    for _ in range(60):
        params = optimizer.apply(params, gradients)
    assert np.isfinite(params["x"]).all()


def test_bfloat16_stays(starting_point):
    params = {name: value.bfloat16() for name, value in starting_point("torch").items()}
    optimizer = Adam(None)
    new = optimizer.apply(params, {name: value * 0.5 for name, value in params.items()})
    assert {value.dtype for value in new.values()} == {torch.bfloat16}
    other = Adam(None)
    other.load_state_dict(optimizer.state_dict(), params=params)
    for name, slots in optimizer.state.items():
        for slot, value in slots.items():
            assert torch.equal(other.state[name][slot], value)
            assert other.state[name][slot].dtype == torch.bfloat16
