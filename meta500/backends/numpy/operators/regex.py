"""RE2 patterns (github.com/google/re2/wiki/Syntax) for full matches with Python's ``re``.

The two differ where it does not show: in RE2 ``\\d``, ``\\w``, ``\\s`` and ``\\b`` are ASCII (and ``\\s``
has no vertical tab), ``$`` is the very end of the text, ``{,3}`` is literal, ``[[:alpha:]]`` is a class, and
there are no back-references and no look-around. So the pattern is read by RE2's rules and written anew,
character classes as ranges of code points. Capturing and greediness do not change whether a whole text
matches and are dropped. Running time is that of ``re``, which for nested repetitions may be exponential
where RE2's is linear.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable

from meta500.errors import UserError

Ranges = tuple[tuple[int, int], ...]

_LAST = sys.maxunicode
_REPEAT_LIMIT = 1000
_DIGIT, _SPACE = ((48, 57),), ((9, 10), (12, 13), (32, 32))
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_PERL = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_CONTROL = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}", re.ASCII)
_GROUP = re.compile(r"\(\?(?:P?<(?P<name>\w+)>|(?P<on>[imsU]*)(?:-(?P<off>[imsU]+))?(?P<end>[:)]))", re.ASCII)


@functools.lru_cache(maxsize=256)
def compile_re2(pattern: str) -> re.Pattern[str]:
    """The Python pattern that matches in full what the RE2 ``pattern`` does.

    Raises:
        UserError: ``pattern`` is not RE2 syntax, or names a Unicode script (only general categories such as
            ``\\pL`` or ``\\p{Lu}`` are known here).
    """
    try:
        return re.compile(_Reader(pattern).translate())
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"pattern '{pattern}': {error}") from None


class _Reader:
    """Reads the pattern from left to right; ``flags`` are those of i, m and s that hold at this place."""

    def __init__(self, pattern: str) -> None:
        self.text, self.at, self.flags = pattern, 0, frozenset[str]()
        self.names: set[str] = set()

    def refuse(self, why: str) -> UserError:
        return UserError(f"pattern '{self.text}', character {self.at}: {why}")

    def translate(self) -> str:
        result = self.alternatives()
        if self.at < len(self.text):
            raise self.refuse("unexpected ')'")
        return result

    def alternatives(self) -> str:
        """Everything up to the end of the pattern or of the group."""
        parts: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "|":
                parts.append("|")
                self.at += 1
                continue
            atom = self.atom()
            if atom is not None:
                parts.append(atom + self.repetition())
        return "".join(parts)

    def repetition(self) -> str:
        found = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            braces = _REPEAT.match(self.text, self.at)
            if char not in "*+?" and braces is None:
                break
            if found:
                raise self.refuse("a repetition of a repetition")
            if braces is None:
                found, self.at = char, self.at + 1
            else:
                found, self.at = self.counted(braces), braces.end()
            if self.text[self.at : self.at + 1] == "?":
                self.at += 1
        return found

    def counted(self, braces: re.Match[str]) -> str:
        low, high = int(braces[1]), int(braces[3]) if braces[3] else None
        if max(low, high or 0) > _REPEAT_LIMIT or (high is not None and high < low):
            raise self.refuse(f"repetition {braces[0]} is not of the form {{n,m}} with n <= m <= 1000")
        return braces[0]

    def atom(self) -> str | None:
        """What a repetition applies to; None where only flags were set."""
        char = self.text[self.at]
        if char in "*+?" or _REPEAT.match(self.text, self.at):
            raise self.refuse(f"nothing to repeat before '{char}'")
        if char == "(":
            return self.group()
        if char == "[":
            return self.written(self.char_class())
        self.at += 1
        if char == ".":
            return self.written(((0, _LAST),) if "s" in self.flags else ((0, 9), (11, _LAST)))
        if char == "^":
            return "(?m:^)" if "m" in self.flags else r"(?:\A)"
        if char == "$":
            return "(?m:$)" if "m" in self.flags else r"(?:\Z)"
        if char == "\\":
            return self.escape()
        return self.written(((ord(char), ord(char)),))

    def group(self) -> str | None:
        before = self.flags
        match = _GROUP.match(self.text, self.at)
        if match is None:
            if self.text.startswith("(?", self.at):
                raise self.refuse("RE2 has no such group (look-around, condition, comment or back-reference)")
            self.at += 1
        else:
            self.at = match.end()
            if match["name"] is not None:
                if match["name"] in self.names:
                    raise self.refuse(f"group name '{match['name']}' occurs twice")
                self.names.add(match["name"])
            else:
                self.flags = (self.flags | set(match["on"])) - set(match["off"] or "")
                if match["end"] == ")":
                    return None
        inside = self.alternatives()
        if self.text[self.at : self.at + 1] != ")":
            raise self.refuse("a group has no ')'")
        self.at += 1
        self.flags = before
        return f"(?:{inside})"

    def escape(self) -> str:
        """What follows a backslash outside of a class."""
        char = self.text[self.at : self.at + 1]
        if char and char in "AzbB":
            self.at += 1
            return {"A": r"(?:\A)", "z": r"(?:\Z)", "b": r"(?a:\b)", "B": r"(?a:\B)"}[char]
        if char == "Q":
            end = self.text.find(r"\E", self.at)
            end = len(self.text) if end < 0 else end
            quoted, self.at = self.text[self.at + 1 : end], min(end + 2, len(self.text))
            if not quoted:
                return "(?:)"
            # A repetition after \E applies to the last character alone.
            return "".join(self.written(((ord(c), ord(c)),)) for c in quoted)
        return self.written(self.escaped_class() or self.escaped_char())

    def escaped_class(self) -> Ranges | None:
        char = self.text[self.at : self.at + 1]
        if char and char.lower() in _PERL:
            self.at += 1
            ranges = _PERL[char.lower()]
            return self.without(ranges) if char.isupper() else ranges
        match = re.compile(r"([pP])(?:\{(\^?)(\w+)\}|(\w))").match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        name = match[3] or match[4]
        known = _category(name)
        if not known:
            raise self.refuse(f"'{match[0]}' is no general category; scripts are not known here")
        return self.without(known) if (match[1] == "P") != bool(match[2]) else known

    def without(self, ranges: Ranges) -> Ranges:
        """All other characters; with the flag i, all that differ in more than case."""
        if "i" not in self.flags:
            return _complement(ranges)
        if ranges[-1][1] > 127:
            raise self.refuse("the complement of a category with the flag i is not known here")
        codes = {code for low, high in ranges for code in range(low, high + 1)}
        folded = {ord(other) for code in codes for other in (chr(code).lower(), chr(code).upper())}
        # The long s and the Kelvin sign are the only others whose case folds into ASCII.
        folded |= {0x17F} if ord("s") in folded else set()
        folded |= {0x212A} if ord("k") in folded else set()
        return _complement((code, code) for code in folded)

    def escaped_char(self) -> Ranges:
        char = self.text[self.at : self.at + 1]
        octal = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}").match(self.text, self.at)
        hexadecimal = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\})").match(self.text, self.at)
        if octal:
            self.at, code = octal.end(), int(octal[0], 8)
        elif hexadecimal:
            self.at, code = hexadecimal.end(), int(hexadecimal[1] or hexadecimal[2], 16)
        elif char in _CONTROL:
            self.at, code = self.at + 1, _CONTROL[char]
        elif char and char.isascii() and not char.isalnum():
            self.at, code = self.at + 1, ord(char)
        else:
            raise self.refuse(f"RE2 has no escape '\\{char}'")
        if code > _LAST:
            raise self.refuse(f"there is no character {code:#x}")
        return ((code, code),)

    def char_class(self) -> Ranges:
        """A bracket expression; the reader stands on its '['."""
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        found: list[tuple[int, int]] = []
        first = True
        while first or not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise self.refuse("a class has no ']'")
            first = False
            posix = re.compile(r"\[:(\^?)(\w+):\]").match(self.text, self.at)
            if posix:
                if posix[2] not in _POSIX:
                    raise self.refuse(f"no class {posix[0]}; there are {', '.join(_POSIX)}")
                self.at = posix.end()
                found += self.without(_POSIX[posix[2]]) if posix[1] else _POSIX[posix[2]]
                continue
            if self.text[self.at] == "\\":
                self.at += 1
                several = self.escaped_class()
                if several is not None:
                    found += several
                    continue
                self.at -= 1
            low = self.class_char()
            high = low
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.class_char()
                if high < low:
                    raise self.refuse("a range of characters runs backwards")
            found.append((low, high))
        self.at += 1
        if "i" in self.flags and negated:
            # Python folds the case of a negated class as RE2 does only if it stays a negated class.
            return (*_merge(found), (-1, -1))
        return _complement(found) if negated else _merge(found)

    def class_char(self) -> int:
        char = self.text[self.at]
        self.at += 1
        return self.escaped_char()[0][0] if char == "\\" else ord(char)

    def written(self, ranges: Ranges) -> str:
        """A set of characters as Python writes it; (-1, -1) marks a negated one."""
        negated = (-1, -1) in ranges
        inner = "".join(_written_range(*r) for r in ranges if r != (-1, -1))
        if not inner:
            return "(?s:.)" if negated else "(?!)"
        text = f"[{'^' if negated else ''}{inner}]"
        return f"(?i:{text})" if "i" in self.flags else text


def _written_range(low: int, high: int) -> str:
    return f"\\U{low:08x}" if low == high else f"\\U{low:08x}-\\U{high:08x}"


def _merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    result, start = [], 0
    for low, high in _merge(ranges):
        if low > start:
            result.append((start, low - 1))
        start = high + 1
    return (*result, (start, _LAST)) if start <= _LAST else tuple(result)


@functools.lru_cache(maxsize=64)
def _category(name: str) -> Ranges:
    """Code points of a general category ("L", "Lu", ...) or of "Any"; empty for an unknown one."""
    if name == "Any":
        return ((0, _LAST),)
    if len(name) > 2 or not name.isalpha():
        return ()
    codes = [c for c in range(_LAST + 1) if unicodedata.category(chr(c)).startswith(name)]
    return _merge((code, code) for code in codes)
