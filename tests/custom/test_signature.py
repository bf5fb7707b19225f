"""Declarations that are refused, each with what would be right."""

import numpy as np
import pytest

from meta500.custom import operator
from meta500.errors import UserError


def define(function, domain="tests.signature", **options):
    return operator(domain, **{"outputs": "y", **options})(function)


def keywords(x, **others): ...
def default_input(x, axis=1): ...
def untyped(x, *, axis): ...
def odd_type(x, *, axis: dict): ...
def wrong_default(x, *, axis: int = "a"): ...  # type: ignore[assignment]
def reserved(x, *, name: str = ""): ...
def element_type(x, *, dtype: int = 1): ...
def between(x, w=None, *more): ...
def plain(x): ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (keywords, {}, "name the attributes one by one"),
        (default_input, {}, r"input 'axis' has the default 1; .*def \.\.\.\(x, \*, axis=1\)"),
        (between, {}, "no optional input before a variable number.*make 'w' required"),
        (untyped, {}, "attribute 'axis' has no type; annotate it as float, int"),
        (odd_type, {}, "attribute 'axis' is annotated"),
        (wrong_default, {}, "the default 'a' of attribute 'axis' is no INT"),
        (reserved, {}, "the name 'name' has another meaning"),
        (element_type, {}, "would be read as an element type; rename it"),
        (plain, {"outputs": ()}, "name its outputs"),
        (plain, {"outputs": "x"}, "'x' names two"),
        (plain, {"outputs": "1y"}, "'1y' is no name"),
        (plain, {"outputs": {"y": "z"}}, "outputs names 'z'; the inputs are x"),
        (plain, {"dtypes": {"z": ["float32"]}}, "dtypes names 'z'"),
        (plain, {"dtypes": ["float33"]}, "are no numpy dtypes"),
        (plain, {"ranks": {"z": 2}}, "ranks names 'z'"),
        (plain, {"domain": ""}, "the domain '' is taken"),
        (plain, {"domain": "ai.onnx.ml"}, "the domain 'ai.onnx.ml' is taken"),
        (plain, {"domain": "meta500"}, "the domain 'meta500' is taken"),
    ],
)
def test_refused(function, options, message):
    with pytest.raises(UserError, match=message):
        define(function, **options)


def test_parameters_of_the_other_functions_must_fit():
    def Scale(x, *, by: float = 2.0): ...

    cls = define(Scale)
    with pytest.raises(UserError, match=r"its backward must take \(call, d_y\)"):
        cls.backward(lambda call: None)
    with pytest.raises(UserError, match="must take the attributes by after a star, it takes none"):
        cls.shape(lambda x: x)
    with pytest.raises(UserError, match="must take the inputs x in this order, it takes z"):
        cls.torch(lambda z, *, by: z)
    cls.shape(lambda x, *, by: x)
    with pytest.raises(UserError, match="types of its outputs are given twice"):
        cls.shape(lambda x, *, by: x)
    cls.backward(lambda call, d_y: d_y)
    with pytest.raises(UserError, match="its backward is defined twice"):
        cls.backward(lambda call, d_y: d_y)


def test_types_of_attributes():
    def Kinds(
        x,
        w,
        *more,
        a: float,
        b=1,
        c=0.5,
        d="text",
        e=(1, 2.5),
        f: list[int] = (),
        g: np.ndarray | None = None,
        h: bool = True,
    ): ...

    signature = define(Kinds).signatures[0]
    found = {a.name: (a.kind, a.required, a.default) for a in signature.attributes.values()}
    assert found == {
        "a": ("FLOAT", True, None),
        "b": ("INT", False, 1),
        "c": ("FLOAT", False, 0.5),
        "d": ("STRING", False, "text"),
        "e": ("FLOATS", False, (1.0, 2.5)),
        "f": ("INTS", False, ()),
        "g": ("TENSOR", False, None),
        "h": ("INT", False, 1),
    }
    assert [(i.name, i.optional, i.variadic) for i in signature.inputs] == [
        ("x", False, False),
        ("w", False, False),
        ("more", False, True),
    ]
