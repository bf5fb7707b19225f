"""Tables in Markdown and LaTeX: parsed again they have the same texts, whatever stands in the names."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from meta500.metrics.report.cells import Cell, Column, DataTable, number_cell, one_line
from meta500.metrics.report.latex import LONG, latex
from meta500.metrics.report.markdown import markdown

HOSTILE = [
    "a|b", "a\\|b", "\\", "a\\", "`code`", "``", "*x*", "**", "_x_", "a_b_c", "__init__", "<img src=x onerror=1>",
    "</script>", "[a](javascript:alert(1))", "[a]: b", "![x](y)", "~~gone~~", "&lt;", "&#60;", "# head", "- item",
    "1. one", "+", "=", "---", "a\nb", "a\r\n\r\nb", "\t", "  ", "$x^2$", "$$", "%", "100 %", "#1", "@user", "{}",
    "}{", "\\end{tabular}", "\\input{/etc/passwd}", "a & b", "a \\\\ b", "[1em]", "*", "--out", "---", ",,", "''",
    "?`", "!`", '"q"', "^", "~", "\0", "\x1b[31m", "\u202e", "é", "µs", "∞", "−1", "×", "", "e-7", "1.5 [1, x]",
]  # fmt: skip
names = st.one_of(
    st.sampled_from(HOSTILE), st.text(max_size=30), st.text("\\`*_[]<>|~&$#@{}%^-,'\"!? a1", max_size=12)
)


def table_of(texts, heading="name", title="Times", note=""):
    columns = (Column(heading), Column("time", "ms", True))
    rows = tuple((Cell(text), number_cell(1.5, 1.25, 1.75)) for text in texts)
    return DataTable("times", title, columns, rows, note)


def parsed_markdown(text):
    """Heading, cells of all lines, alignments, and note, as shown; anything but text is an error."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    shown, kinds, styles = [], [], []
    for token, before in zip(tokens[1:], tokens, strict=False):
        if token.type in ("th_open", "td_open"):
            styles.append(token.attrs.get("style", ""))
        if token.type == "inline":
            assert {child.type for child in token.children or []} <= {"text", "text_special"}, token.content
            kinds.append(before.type)
            shown.append("".join(child.content for child in token.children or []))
    assert "html_block" not in {token.type for token in tokens}
    heading = next(s for s, k in zip(shown, kinds, strict=True) if k == "heading_open")
    cells = [s for s, k in zip(shown, kinds, strict=True) if k in ("th_open", "td_open")]
    notes = [s for s, k in zip(shown, kinds, strict=True) if k == "paragraph_open"]
    assert len(notes) + len(cells) + 1 == len(shown)
    return heading, [cells[i : i + 2] for i in range(0, len(cells), 2)], styles[:2], notes


@given(st.lists(names, max_size=5), names, names)
@example(HOSTILE, "|", "- [x] done")
@example(["-", "1)"], "<b>", "12) twelve")
@example([], "a", "= b")
def test_markdown_shows_every_name_as_it_is(texts, heading, note):
    title = one_line(heading) or "title"
    found = parsed_markdown(markdown(table_of(texts, heading, title=title, note=note)))
    assert found[0] == title
    assert found[1] == [
        [one_line(heading), "time (ms)"],
        *([one_line(text), "1.50 [1.25, 1.75]"] for text in texts),
    ]
    assert found[2] == ["", "text-align:right"]
    assert found[3] == ([one_line(note)] if one_line(note) else [])


@pytest.mark.parametrize(
    "name", ["https://evil.example", "see HTTP://e.example", "www.evil.example", "WWW.e.de"]
)
def test_addresses_in_names_become_no_links(name):
    text = markdown(table_of([name], note=name))
    assert not re.search(r"://|www\.", text, re.IGNORECASE)
    assert parsed_markdown(text)[1][1][0] == name and parsed_markdown(text)[3] == [name]


def test_markdown_numbers_have_no_backslashes():
    text = markdown(table_of(["a"]))
    assert text == "### Times\n\n| name | time (ms) |\n| --- | ---: |\n| a | 1.50 [1.25, 1.75] |\n"
    assert markdown(table_of(["a"]), level=2).startswith("## ")


# What LaTeX prints for these, in the order in which they are tried.
COMMANDS = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\textasciigrave{}": "`", r"\textquotedbl{}": '"',
    r"\textquotesingle{}": "'", r"\textmu{}": "µ", r"$\times$": "×", "$-$": "−", r"$\infty$": "∞",
    r"$\leq$": "≤", r"$\geq$": "≥", r"$\approx$": "≈", r"$\rightarrow$": "→", "{[}": "[", "{]}": "]",
    "{*}": "*", "-{}": "-", ",{}": ",", r"\{": "{", r"\}": "}", r"\$": "$", r"\&": "&", r"\#": "#", r"\_": "_",
    r"\%": "%",
}  # fmt: skip
LIGATURES = ("--", ",,", "''", "``", "<<", ">>", "?`", "!`")


def printed(text):
    """What LaTeX prints; a special character or a command that is not known is an error."""
    result, place = [], 0
    while place < len(text):
        command = next((c for c in COMMANDS if text.startswith(c, place)), None)
        if command is None:
            assert text[place] not in "\\{}$&#_%~^<>|\"`'[]*", (text, place)
            assert not text.startswith(LIGATURES, place), (text, place)
            command = text[place]
        result.append(COMMANDS.get(command, command))
        place += len(command)
    return "".join(result)


def parsed_latex(text):
    """Caption, label, columns and lines of cells of a table; its structure is checked strictly."""
    lines = text.split("\n")
    assert lines[0].startswith("% ") and lines[-1] == ""
    stack = []
    for line in lines[1:]:
        for kind, name in re.findall(r"(?<!\\)\\(begin|end)\{(\w+)\}", line):
            if kind == "begin":
                stack.append(name)
            else:
                assert stack.pop() == name
    assert not stack
    (place,) = [i for i, line in enumerate(lines) if line.startswith(r"\caption{")]
    caption = re.fullmatch(r"\\caption\{(.*)\}\\label\{tab:([a-z0-9-]+)\}(?:\\\\)?", lines[place])
    begin = next(line for line in lines if line.startswith((r"\begin{tabular}", r"\begin{longtable}")))
    rows = [line.removesuffix(r" \\") for line in lines if line.endswith(r" \\")]
    return caption[1], caption[2], begin, [re.split(r"(?<!\\) & ", f" {row} ") for row in rows]


@given(st.lists(names, max_size=5), names, names)
@example(HOSTILE, "[x]", "\\}")
@example(["-1", "1.5e-7", "-0.5 [-1, 2]"], "-1", "-1")
@example(["[2em]"] * (LONG + 1), "a", "b")
def test_latex_prints_every_name_as_it_is(texts, heading, note):
    caption, label, begin, rows = parsed_latex(latex(table_of(texts, heading, note=note)))
    assert label == "times" and begin.endswith(("{lr}", r"p{0.3\linewidth}r}"))
    words = one_line(note).rstrip(".")
    assert printed(caption).removesuffix(".") == ". ".join(filter(None, ("Times", words)))
    heads = 2 if len(texts) > LONG else 1
    assert [[printed(cell.strip()) for cell in row] for row in rows[:heads]] == [
        [one_line(heading), "time (ms)"]
    ] * heads
    assert [[printed(row[0].strip()), row[1].strip()] for row in rows[heads:]] == [
        [one_line(text), "1.50 [1.25, 1.75]"] for text in texts
    ]


def test_latex_of_a_short_table_is_this():
    assert latex(table_of(["conv_1"], note="In ms.")) == (
        "% \\usepackage{array,booktabs} and \\usepackage[T1]{fontenc}\n"
        "\\begin{table}\n\\centering\n\\caption{Times. In ms.}\\label{tab:times}\n"
        "\\begin{tabular}{lr}\n\\toprule\nname & time (ms) \\\\\n\\midrule\n"
        "conv\\_1 & 1.50 [1.25, 1.75] \\\\\n\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )


def test_latex_of_many_lines_goes_over_pages_and_repeats_its_head():
    text = latex(table_of(["a"] * (LONG + 1)))
    assert "longtable}" in text and "\\begin{table}" not in text and "array,booktabs,longtable" in text
    order = [
        "\\caption",
        "\\endfirsthead",
        "\\endhead",
        "\\bottomrule",
        "\\endfoot",
        "a & 1.50",
        "\\end{longtable}",
    ]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert text.count("name & time") == 2 and text.count("\na & ") == LONG + 1


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("1.2e-7", r"$1.2\times 10^{-7}$"),
        ("-3.4e9", r"$-3.4\times 10^{9}$"),
        ("-0.5", "$-$0.5"),
        ("-1.5 [-2.0, 1e-5]", r"$-$1.5 [$-$2.0, $1\times 10^{-5}$]"),
        ("12", "12"),
        ("v1.2e-7", "v1.2e-7"),
        ("2026-11-22", "2026-11-22"),
    ],
)
def test_latex_numbers_are_as_in_print(number, expected):
    table = DataTable("k", "t", (Column("a", numeric=True),), ((Cell(number),),))
    assert f"\n{expected} \\\\\n" in latex(table)


def test_long_words_are_broken_into_lines():
    assert r"{>{\raggedright\arraybackslash}p{0.3\linewidth}r}" in latex(table_of(["word " * 20]))
