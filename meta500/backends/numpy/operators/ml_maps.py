"""Look-ups of ai.onnx.ml: LabelEncoder, CategoryMapper, DictVectorizer, CastMap and ZipMap.

Maps are Python dicts with int or str keys; a sequence of maps is a list of dicts. None of these operators is
differentiable in a tensor of floats but ZipMap, whose result is no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.ml_scores import DOMAIN, as_stored
from meta500.backends.numpy.operators.text import texts
from meta500.errors import UserError, choose

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Strings = tuple[str, ...]
_NAN = object()


FLOAT32: np.dtype = np.dtype(np.float32)
INT64: np.dtype = np.dtype(np.int64)
TEXT: np.dtype = np.dtype(object)


def array_of(values: list[Any], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array of ``shape``; object for strings."""
    return texts(values, shape) if dtype == TEXT else np.array(values, dtype).reshape(shape)


def _only(operator: str, what: str, given: dict[str, Any]) -> tuple[str, Any]:
    """The one attribute that is set."""
    found = [(name, value) for name, value in given.items() if value is not None and len(value)]
    if len(found) != 1:
        raise UserError(
            f"{operator}: exactly one of {', '.join(given)} must be set ({what}), not {len(found)}"
        )
    return found[0]


def _check_strings(operator: str, x: np.ndarray, expected: bool) -> None:
    if (x.dtype.kind in "OU") != expected:
        raise UserError(
            f"{operator}: the input is {x.dtype}, the keys are {'strings' if expected else 'numbers'}"
        )


@rules.rule("LabelEncoder", 1, domain=DOMAIN)
def label_encoder_1(
    x: np.ndarray,
    *,
    classes_strings: Strings | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> np.ndarray:
    """LabelEncoder-1: strings become their index in ``classes_strings``, integers the string at that index.

    Raises:
        UserError: no classes.
    """
    if not classes_strings:
        raise UserError("LabelEncoder: classes_strings is missing")
    if x.dtype.kind in "OU":
        position = {label: index for index, label in reversed(list(enumerate(classes_strings)))}
        found: list[Any] = [position.get(label, default_int64) for label in x.flat]
        return array_of(found, INT64, x.shape)
    count = len(classes_strings)
    found = [classes_strings[i] if 0 <= i < count else default_string for i in x.reshape(-1).tolist()]
    return texts(found, x.shape)


@rules.rule("LabelEncoder", 2, domain=DOMAIN)
def label_encoder_2(
    x: np.ndarray,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    keys_floats: Floats | None = None,
    keys_int64s: Ints | None = None,
    keys_strings: Strings | None = None,
    values_floats: Floats | None = None,
    values_int64s: Ints | None = None,
    values_strings: Strings | None = None,
) -> np.ndarray:
    """LabelEncoder-2: a one-to-one map from keys to values; floats are compared by their bits.

    Raises:
        UserError: not exactly one kind of keys and of values, different numbers of them, a key with two
            values, or an input of another type than the keys.
    """
    keys = {"keys_floats": keys_floats, "keys_int64s": keys_int64s, "keys_strings": keys_strings}
    values = {
        "values_floats": values_floats,
        "values_int64s": values_int64s,
        "values_strings": values_strings,
    }
    name, listed = _only("LabelEncoder", "the keys", keys)
    target, results = _only("LabelEncoder", "the values", values)
    dtype, default = _result(target, None, default_float, default_int64, default_string)
    key = _bits if name == "keys_floats" else _plain
    table: dict[Any, Any] = {}
    for k, value in _paired(listed, results):
        if table.setdefault(key(k), value) != value:
            raise UserError(f"LabelEncoder: the key {k!r} has two values")
    return _encode(x, _key_type(name, None), table, key, default, dtype)


@rules.rule("LabelEncoder", 4, domain=DOMAIN)
def label_encoder(
    x: np.ndarray,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None,
    keys_floats: Floats | None = None,
    keys_int64s: Ints | None = None,
    keys_strings: Strings | None = None,
    keys_tensor: np.ndarray | None = None,
    values_floats: Floats | None = None,
    values_int64s: Ints | None = None,
    values_strings: Strings | None = None,
    values_tensor: np.ndarray | None = None,
) -> np.ndarray:
    """ONNX LabelEncoder: a map from keys to values; the last of equal keys counts, NaN is equal to NaN.

    Raises:
        UserError: not exactly one kind of keys and of values, different numbers of them, or an input of
            another type than the keys.
    """
    keys = {"keys_floats": keys_floats, "keys_int64s": keys_int64s, "keys_strings": keys_strings}
    values = {
        "values_floats": values_floats,
        "values_int64s": values_int64s,
        "values_strings": values_strings,
    }
    name, listed = _only("LabelEncoder", "the keys", {**keys, "keys_tensor": keys_tensor})
    target, results = _only("LabelEncoder", "the values", {**values, "values_tensor": values_tensor})
    dtype, default = _result(target, values_tensor, default_float, default_int64, default_string)
    if default_tensor is not None:
        if default_tensor.size != 1 or default_tensor.dtype != dtype:
            raise UserError(f"LabelEncoder: default_tensor must hold one {dtype}, the type of the values")
        default = default_tensor.reshape(-1).tolist()[0]
    if name == "keys_floats":
        listed = as_stored(listed)
    table = {_no_nan(k): value for k, value in _paired(listed, results)}
    return _encode(x, _key_type(name, keys_tensor), table, _no_nan, default, dtype)


def _paired(keys: Any, values: Any) -> list[tuple[Any, Any]]:
    if len(keys) != len(values):
        raise UserError(f"LabelEncoder: {len(keys)} keys for {len(values)} values")
    plain = [v.reshape(-1).tolist() if isinstance(v, np.ndarray) else list(v) for v in (keys, values)]
    return list(zip(*plain, strict=True))


def _key_type(name: str, tensor: np.ndarray | None) -> np.dtype:
    if name == "keys_tensor" and tensor is not None:
        return tensor.dtype
    return {"floats": FLOAT32, "int64s": INT64, "strings": TEXT}[name.removeprefix("keys_")]


def _result(
    name: str, tensor: np.ndarray | None, default_float: float, default_int: int, default_string: str
) -> tuple[np.dtype, Any]:
    """Type and default of the values."""
    dtype = _key_type(name.replace("values_", "keys_"), tensor)
    default: dict[str, Any] = {"f": default_float, "i": default_int, "O": default_string, "U": default_string}
    return (TEXT if dtype.kind == "U" else dtype), default[dtype.kind]


def _encode(
    x: np.ndarray,
    keys: np.dtype,
    table: dict[Any, Any],
    key: Callable[[Any], Any],
    default: Any,
    dtype: np.dtype,
) -> np.ndarray:
    _check_strings("LabelEncoder", x, keys.kind in "OU")
    if keys.kind not in "OU" and x.dtype != keys:
        raise UserError(f"LabelEncoder: the input is {x.dtype}, the keys are {keys}")
    return array_of([table.get(key(v), default) for v in x.reshape(-1).tolist()], dtype, x.shape)


def _plain(key: Any) -> Any:
    return key


def _bits(key: float) -> bytes:
    return np.float32(key).tobytes()


def _no_nan(key: Any) -> Any:
    return _NAN if isinstance(key, float) and math.isnan(key) else key


@rules.rule("CategoryMapper", 1, domain=DOMAIN)
def category_mapper(
    x: np.ndarray,
    *,
    cats_int64s: Ints | None = None,
    cats_strings: Strings | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> np.ndarray:
    """ONNX CategoryMapper: strings to integers or integers to strings, by two parallel lists.

    Raises:
        UserError: the lists are missing or differ in length.
    """
    ints, strings = cats_int64s or (), cats_strings or ()
    if not ints or len(ints) != len(strings):
        raise UserError(f"CategoryMapper: {len(ints)} cats_int64s for {len(strings)} cats_strings")
    pairs = list(zip(ints, strings, strict=True))[::-1]
    if x.dtype.kind in "OU":
        to_int = {text: number for number, text in pairs}
        return array_of([to_int.get(text, default_int64) for text in x.flat], INT64, x.shape)
    to_text = dict(pairs)
    return texts([to_text.get(number, default_string) for number in x.reshape(-1).tolist()], x.shape)


def _as_map(operator: str, x: Any) -> dict[Any, Any]:
    if not isinstance(x, Mapping):
        raise UserError(f"{operator}: the input is {type(x).__name__}, expected a map (dict)")
    return {k.item() if isinstance(k, np.generic) else k: _item(v) for k, v in x.items()}


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


@rules.rule("DictVectorizer", 1, domain=DOMAIN)
def dict_vectorizer(
    x: Any, *, int64_vocabulary: Ints | None = None, string_vocabulary: Strings | None = None
) -> np.ndarray:
    """ONNX DictVectorizer: the map's values at the places of their keys in the vocabulary, zero elsewhere.

    A 1-D tensor, as the operator's text says (ONNX Runtime gives it a leading 1). Python ints become int64,
    floats float32 (float64 where the map's values are numpy's float64), str strings with "" elsewhere.

    Raises:
        UserError: a key outside the vocabulary, or mixed values.
    """
    _, vocabulary = _only(
        "DictVectorizer",
        "the vocabulary",
        {"int64_vocabulary": int64_vocabulary, "string_vocabulary": string_vocabulary},
    )
    dtype = _value_type("DictVectorizer", x)
    given = _as_map("DictVectorizer", x)
    position = {key: index for index, key in reversed(list(enumerate(vocabulary)))}
    result: list[Any] = ["" if dtype == TEXT else 0] * len(vocabulary)
    for key, value in given.items():
        if key not in position:
            raise UserError(f"DictVectorizer: the key {key!r} is not in the vocabulary")
        result[position[key]] = value
    return array_of(result, dtype, (len(vocabulary),))


def _value_type(operator: str, x: Any) -> np.dtype:
    values = list(x.values()) if isinstance(x, Mapping) else []
    if all(isinstance(v, np.float64) or getattr(v, "dtype", None) == np.float64 for v in values) and values:
        return np.dtype(np.float64)
    plain = [_item(v) for v in values]
    if all(isinstance(v, str) for v in plain) and plain:
        return TEXT
    if all(isinstance(v, int) and not isinstance(v, bool) for v in plain) and plain:
        return INT64
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in plain):
        return FLOAT32
    raise UserError(f"{operator}: the map's values are not all strings, integers or floats")


_TARGETS = {"TO_FLOAT": FLOAT32, "TO_INT64": INT64, "TO_STRING": TEXT}


@rules.rule("CastMap", 1, domain=DOMAIN)
def cast_map(x: Any, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> np.ndarray:
    """ONNX CastMap: the values of an int64 map in ascending order of keys, shape (1, n).

    "DENSE" gives as many as there are, "SPARSE" ``max_map`` with the key as the index and zero ("" for
    strings) elsewhere. Floats become text with the fewest digits that give the float32 back.

    Raises:
        UserError: a text that is no number, or, in sparse form, a key outside 0 to max_map - 1.
    """
    choose("CastMap cast_to", cast_to, _TARGETS)
    choose("CastMap map_form", map_form, ("DENSE", "SPARSE"))
    dtype = _TARGETS[cast_to]
    given = {key: _converted(value, cast_to) for key, value in _as_map("CastMap", x).items()}
    if any(not isinstance(key, int) for key in given):
        raise UserError("CastMap: the keys of the map must be integers")
    if map_form == "DENSE":
        return array_of([given[key] for key in sorted(given)], dtype, (1, len(given)))
    result: list[Any] = ["" if cast_to == "TO_STRING" else 0] * max_map
    for key, value in given.items():
        if not 0 <= key < max_map:
            raise UserError(f"CastMap: the key {key} is outside 0 to {max_map - 1} (max_map - 1)")
        result[key] = value
    return array_of(result, dtype, (1, max_map))


def _converted(value: Any, cast_to: str) -> Any:
    try:
        if cast_to == "TO_STRING":
            return value if isinstance(value, str) else str(np.float32(value))
        return float(value) if cast_to == "TO_FLOAT" else int(value)
    except (ValueError, OverflowError):
        raise UserError(f"CastMap: {value!r} cannot become {cast_to.removeprefix('TO_').lower()}") from None


@rules.rule("ZipMap", 1, domain=DOMAIN)
def zip_map(
    x: np.ndarray, *, classlabels_int64s: Ints | None = None, classlabels_strings: Strings | None = None
) -> list[dict[Any, float]]:
    """ONNX ZipMap: one dict per row of [N, C] (or of [C]) from the labels to the row's values.

    Raises:
        UserError: another rank, or as many labels as columns are not given.
    """
    _, names = _only(
        "ZipMap",
        "the keys",
        {"classlabels_int64s": classlabels_int64s, "classlabels_strings": classlabels_strings},
    )
    if x.ndim not in (1, 2) or x.shape[-1] != len(names):
        raise UserError(f"ZipMap: {len(names)} labels for an input of shape {list(x.shape)}")
    return [dict(zip(names, row, strict=True)) for row in np.atleast_2d(x).tolist()]
