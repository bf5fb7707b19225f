"""Tables in LaTeX, with the rules of booktabs: to be put in a paper with ``\\input``."""

from __future__ import annotations

import re

from meta500.metrics.report.cells import NUMBER, Cell, Column, DataTable, one_line, slug

# Tables of more lines go over several pages, with their head on each of them.
LONG = 40
# Columns with longer words are broken into lines.
BROAD = 40
PARAGRAPH = r">{\raggedright\arraybackslash}p{0.3\linewidth}"
_NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)(?:e(-?[0-9]+))?")
_NUMBERS = re.compile(rf"{NUMBER.pattern}( \[{NUMBER.pattern}, {NUMBER.pattern}\])?")
_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_",
    "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}", '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    # In braces, these are no option of the line end or the rule before them.
    "[": "{[}", "]": "{]}", "*": "{*}",
    # Two of these in a row would be one sign.
    "-": "-{}", ",": ",{}",
    "µ": r"\textmu{}", "\u00d7": r"$\times$", "\u2212": "$-$", "∞": r"$\infty$", "≤": r"$\leq$",
    "≥": r"$\geq$", "≈": r"$\approx$", "→": r"$\rightarrow$",
}  # fmt: skip
_SPECIAL = re.compile("|".join([r"-(?=-)", r",(?=,)", *(re.escape(c) for c in _ESCAPES if c not in "-,")]))


def latex(table: DataTable) -> str:
    """The table with caption and label ``tab:KEY``: a ``tabular``, from 41 lines on a ``longtable``.

    It needs the packages booktabs and array, a long one longtable, and the font encoding T1; its first line
    says so. The caption is the title and the note.
    """
    columns = "".join(
        _column(column, [row[i] for row in table.rows]) for i, column in enumerate(table.columns)
    )
    caption = ". ".join(filter(None, (escaped(table.title).rstrip("."), escaped(table.note).rstrip("."))))
    label = rf"\caption{{{caption}.}}\label{{tab:{slug(table.key)}}}"
    head = _line([escaped(column.heading) for column in table.columns])
    numeric = [column.numeric for column in table.columns]
    body = [
        _line([cell_text(c) if n else escaped(c.text) for c, n in zip(row, numeric, strict=True)])
        for row in table.rows
    ]
    packages = "array,booktabs,longtable" if len(body) > LONG else "array,booktabs"
    first = rf"% \usepackage{{{packages}}} and \usepackage[T1]{{fontenc}}"
    lines = _long(columns, label, head, body) if len(body) > LONG else _short(columns, label, head, body)
    return "\n".join([first, *lines]) + "\n"


def escaped(text: str) -> str:
    """The text on one line, such that LaTeX prints it as it is, as far as the font has its characters."""
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], one_line(text))


def cell_text(cell: Cell) -> str:
    """A number, with an interval or not, with signs and powers of ten as in print; other texts `escaped`."""
    text = one_line(cell.text)
    return _NUMBER.sub(_printed, text) if _NUMBERS.fullmatch(text) else escaped(text)


def _printed(found: re.Match[str]) -> str:
    mantissa, power = found[1], found[2]
    if power is not None:
        return rf"${mantissa}\times 10^{{{power}}}$"
    return f"$-${mantissa[1:]}" if mantissa.startswith("-") else mantissa


def _column(column: Column, cells: list[Cell]) -> str:
    if column.numeric:
        return "r"
    return PARAGRAPH if any(len(one_line(cell.text)) > BROAD for cell in cells) else "l"


def _short(columns: str, label: str, head: str, body: list[str]) -> list[str]:
    return [
        r"\begin{table}",
        r"\centering",
        label,
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def _long(columns: str, label: str, head: str, body: list[str]) -> list[str]:
    return [
        rf"\begin{{longtable}}{{{columns}}}",
        rf"{label}\\",
        r"\toprule",
        head,
        r"\midrule",
        r"\endfirsthead",
        r"\toprule",
        head,
        r"\midrule",
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
        *body,
        r"\end{longtable}",
    ]


def _line(cells: list[str]) -> str:
    return rf"{' & '.join(cells)} \\"
