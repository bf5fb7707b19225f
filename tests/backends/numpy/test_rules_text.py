"""Operators on text: splitting, cases, RE2's syntax beside Python's, n-grams counted by hand, images."""

from __future__ import annotations

import io

import numpy as np
import pytest

from meta500.backends.numpy.operators.regex import compile_re2
from meta500.errors import UserError


def text(*values: str) -> np.ndarray:
    return np.array(values, object)


# Pattern, what it matches as a whole, and what it does not; by RE2's published syntax.
PATTERNS = [
    (r"a+b", ["ab", "aaab"], ["b", "aba", ""]),
    (r"(a|bc)*", ["", "abca"], ["ab", "c"]),
    (r"\d{2,3}", ["12", "123"], ["1", "1234", "٣٤"]),
    (r"\w+", ["a_9"], ["é", "a b"]),
    (r"\s", [" ", "\t", "\n", "\f", "\r"], ["\v", "\u00a0"]),
    (r"x{,3}", ["x{,3}"], ["", "xx"]),
    (r"x{2}?y??", ["xx", "xxy"], ["x", "xxx"]),
    (r"[[:alpha:]]+", ["abc"], ["a1", ""]),
    (r"[^[:^digit:]a-c]", ["5"], ["a", "x"]),
    (r"[]a]", ["]", "a"], ["["]),
    (r"[a\-z]", ["a", "-", "z"], ["b"]),
    (r".", ["é", "a"], ["\n", ""]),
    (r"(?s).", ["\n"], ["ab"]),
    (r"(?i)straße", ["STRAßE", "Straße"], ["STRASSE"]),
    (r"(?i:a)b", ["Ab", "ab"], ["aB"]),
    (r"(?P<n>a)(?<m>b)", ["ab"], ["a"]),
    (r"a$", ["a"], ["a\n"]),
    (r"\Aa\z", ["a"], ["a\n"]),
    (r"\pL+", ["éß"], ["1"]),
    (r"\p{Lu}\P{Lu}", ["Aa"], ["AA"]),
    (r"\Q.*\E+", [".**"], ["ab", ".*.*"]),
    (r"\x41\x{1F600}\101", ["A\U0001f600A"], ["A"]),
    (r"a\bb|c\b", ["c"], ["ab"]),
    (r"(?U)a+", ["aaa"], ["b"]),
    (r"[[:word]", ["[", ":", "w"], ["a"]),
]


@pytest.mark.parametrize(("pattern", "inside", "outside"), PATTERNS, ids=lambda v: repr(v)[:30])
def test_re2_patterns(pattern, inside, outside) -> None:
    compiled = compile_re2(pattern)
    assert [t for t in inside if not compiled.fullmatch(t)] == []
    assert [t for t in outside if compiled.fullmatch(t)] == []


@pytest.mark.parametrize(
    "pattern",
    [r"(?=a)", r"(?<!a)b", r"(a)\1", r"a**", r"*a", r"(a", r"a)", r"[b-a]", r"a{3,2}", r"a{1001}", r"\p{Nope}", r"\y"],
)  # fmt: skip
def test_what_re2_refuses(pattern) -> None:
    with pytest.raises(UserError, match="pattern"):
        compile_re2(pattern)


def test_split(rule) -> None:
    x = text(" a  b c ", "", "a,,b")
    parts, counts = rule("StringSplit", 20, [x], n_outputs=2).outputs
    assert parts.tolist() == [["a", "b", "c"], ["", "", ""], ["a,,b", "", ""]] and counts.tolist() == [
        3,
        0,
        1,
    ]
    parts, counts = rule("StringSplit", 20, [x], {"delimiter": ","}, n_outputs=2).outputs
    assert parts[2].tolist() == ["a", "", "b"] and counts.tolist() == [1, 1, 3]
    parts, _ = rule("StringSplit", 20, [x], {"delimiter": ",", "maxsplit": 1}, n_outputs=2).outputs
    assert parts[2].tolist() == ["a", ",b"]


def test_concatenation_broadcasts(rule) -> None:
    (y,) = rule("StringConcat", 20, [text("a", "b")[:, None], text("x", "y")]).outputs
    assert y.tolist() == [["ax", "ay"], ["bx", "by"]]
    with pytest.raises(UserError, match="expected strings"):
        rule("StringConcat", 20, [text("a"), np.ones(1)])


def test_normalization(rule) -> None:
    x = text("Monday", "tuesday", "WEDNESDAY")
    (y,) = rule(
        "StringNormalizer", 10, [x], {"stopwords": ("MONDAY",), "case_change_action": "UPPER"}
    ).outputs
    assert y.tolist() == ["TUESDAY", "WEDNESDAY"]
    (y,) = rule("StringNormalizer", 10, [x], {"stopwords": ("MONDAY",), "is_case_sensitive": 1}).outputs
    assert y.tolist() == x.tolist()
    everything = {"stopwords": ("monday", "Tuesday", "wednesday")}
    assert rule("StringNormalizer", 10, [x[None]], everything).outputs[0].tolist() == [[""]]
    with pytest.raises(UserError, match="locale 'tr_TR'"):
        rule("StringNormalizer", 10, [x], {"case_change_action": "LOWER", "locale": "tr_TR"})
    with pytest.raises(UserError, match="expected"):
        rule("StringNormalizer", 10, [np.stack([x, x])], {})


def counted(tokens: list[int], grams: list[tuple[int, ...]], low: int, high: int, skip: int) -> list[int]:
    """Counts of n-grams whose tokens are 1 to skip + 1 places apart; single tokens count once."""
    found = [0] * len(grams)
    for number, gram in enumerate(grams):
        if low <= len(gram) <= high:
            for step in range(1, (skip if len(gram) > 1 else 0) + 2):
                for start in range(len(tokens)):
                    found[number] += tuple(tokens[start : start + step * len(gram) : step]) == gram
    return found


@pytest.mark.parametrize(("low", "high", "skip"), [(1, 1, 0), (2, 2, 0), (1, 2, 3), (2, 3, 1), (1, 3, 5)])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_ngrams(rule, low, high, skip, mode) -> None:
    rng = np.random.default_rng(low + high + skip)
    x = rng.integers(0, 4, size=(3, 9))
    grams = [(0,), (2,), (0, 1), (3, 3), (2, 0), (1, 2, 3), (0, 0, 0)]
    weights = tuple(np.round(rng.uniform(0.5, 2, size=7), 2).tolist())
    attributes = {
        "min_gram_length": low, "max_gram_length": high, "max_skip_count": skip, "mode": mode, "weights": weights,
        "ngram_counts": (0, 2, 8), "ngram_indexes": (6, 5, 4, 3, 2, 1, 0), "pool_int64s": sum(grams, ()),
    }  # fmt: skip
    (y,) = rule("TfIdfVectorizer", 9, [x], attributes).outputs
    assert y.dtype == np.float32
    counts = np.array([counted(row, grams, low, high, skip) for row in x.tolist()])
    factor = 1 if mode == "TF" else np.array(weights)
    expected = (counts > 0 if mode == "IDF" else counts) * factor
    np.testing.assert_allclose(y, expected[:, ::-1], rtol=1e-6)
    assert expected.any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pool_strings": ("a",)}, "exactly one"),
        ({"ngram_counts": (0, 2)}, "make no 2-grams"),
        ({"ngram_indexes": (0,)}, "1 ngram_indexes"),
        ({"weights": (1.0,)}, "1 weights"),
        ({"min_gram_length": 3}, "do not fit"),
        ({"mode": "BM25"}, "mode"),
    ],
)
def test_ngrams_refuse(rule, changes, words) -> None:
    attributes = {
        "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "mode": "TF", "ngram_counts": (0, 1),
        "ngram_indexes": (0, 1), "pool_int64s": (1, 2, 3),
    }  # fmt: skip
    with pytest.raises(UserError, match=words):
        rule("TfIdfVectorizer", 9, [np.arange(4)], {**attributes, **changes})


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_images_come_back(rule, form) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, size=(5, 7, 3)).astype(np.uint8)
    stream = io.BytesIO()
    image.fromarray(pixels).save(stream, form)
    encoded = np.frombuffer(stream.getvalue(), np.uint8)
    np.testing.assert_array_equal(rule("ImageDecoder", 20, [encoded]).outputs[0], pixels)
    (y,) = rule("ImageDecoder", 20, [encoded], {"pixel_format": "BGR"}).outputs
    np.testing.assert_array_equal(y, pixels[:, :, ::-1])
    (y,) = rule("ImageDecoder", 20, [encoded], {"pixel_format": "Grayscale"}).outputs
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    assert y.shape == (5, 7, 1) and np.abs(y[..., 0] - luma).max() <= 1


def test_what_is_no_image_is_empty(rule) -> None:
    pytest.importorskip("PIL")
    assert rule("ImageDecoder", 20, [np.arange(50, dtype=np.uint8)]).outputs[0].shape == (0, 0, 3)
