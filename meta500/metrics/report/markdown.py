"""Tables in Markdown, as GitHub shows them: names appear as they are, and nothing in them is markup."""

from __future__ import annotations

import re

from meta500.metrics.report.cells import NUMBER, DataTable, one_line

# A number with its interval needs no backslashes, which would make it hard to read as text.
_NUMBERS = re.compile(rf"{NUMBER.pattern}( \[{NUMBER.pattern}, {NUMBER.pattern}\])?")
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&$!#@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)|(?<=[wW]{3})\.")
# A backslash does not keep GitHub from taking these for the name of a user, the number of an issue, or a part
# of an address.
_REFERENCES = {"@": "&#64;", "#": "&#35;", ":": "&#58;", ".": "&#46;"}


def markdown(table: DataTable, level: int = 3) -> str:
    """A heading, the table with numbers at the right, and the note below it; ends with a line end.

    Args:
        table: what is written; an absent number is an empty cell.
        level: of the heading, 1 to 6.
    """
    heads = [escaped(column.heading) or " " for column in table.columns]
    lines = [
        f"{'#' * level} {escaped(table.title)}",
        "",
        _line(heads),
        _line(["---:" if column.numeric else "---" for column in table.columns]),
        *(_line([escaped(cell.text) for cell in row]) for row in table.rows),
    ]
    if table.note:
        lines += ["", escaped_block(table.note)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """The text on one line, such that Markdown shows it as it is."""
    text = one_line(text)
    if _NUMBERS.fullmatch(text):
        return text
    return _SPECIAL.sub(lambda found: _REFERENCES.get(found[0], f"\\{found[0]}"), text)


def escaped_block(text: str) -> str:
    """As `escaped`, for a paragraph: what would begin a list or a heading does not."""
    return re.sub(r"^([-+=]|[0-9]+(?=[.)]))", lambda found: _first(found[0]), escaped(text))


def _first(mark: str) -> str:
    return f"{mark[:-1]}&#{ord(mark[-1])};"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
