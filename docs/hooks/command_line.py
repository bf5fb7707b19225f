"""Makes the page reference/command-line.md from the Typer application when the site is built."""

from __future__ import annotations

from typing import Any

PAGE = "reference/command-line.md"


def on_files(files: Any, config: Any) -> Any:
    """Add the page to the files of the site (an event of MkDocs)."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=command_line_page()))
    return files


def command_line_page() -> str:
    """All verbs with their arguments and options, as Markdown."""
    import typer

    from meta500.cli.application import application

    command = typer.main.get_command(application)
    context = command.context_class(command, info_name="meta500")
    lines = ["# Command line", "", *_text(command.help), "| verb | |", "|---|---|"]
    for name in command.list_commands(context):
        verb = command.get_command(context, name)
        lines.append(f"| [`meta500 {name}`](#meta500-{name}) | {_cell(_first_sentence(verb.help))} |")
    lines += ["", "Every verb has `--help`, which shows the same text."]
    for name in command.list_commands(context):
        lines += _section(command.get_command(context, name), context, name, 2)
    return "\n".join(lines) + "\n"


def _section(command: Any, parent: Any, name: str, level: int) -> list[str]:
    """A heading, the docstring, the usage and a table of one verb, then its own verbs."""
    context = command.context_class(command, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [
        "",
        f"{'#' * level} {context.command_path}",
        "",
        *_text(command.help),
        "```text",
        usage,
        "```",
        "",
    ]
    records = [
        (parameter, record)
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None and "--help" not in parameter.opts
    ]
    for kind in ("argument", "option"):
        rows = [record for parameter, record in records if parameter.param_type_name == kind]
        if rows:
            lines += [f"| {kind} | |", "|---|---|"]
            lines += [f"| `{_term(term)}` | {_cell(text)} |" for term, text in rows]
            lines.append("")
    if hasattr(command, "list_commands"):
        for verb in command.list_commands(context):
            lines += _section(command.get_command(context, verb), context, verb, level + 1)
    return lines


def _text(text: str | None) -> list[str]:
    return [*(text or "").strip().splitlines(), ""]


def _first_sentence(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0].replace("\n", " ")


def _cell(text: str) -> str:
    """Text for a cell of a table: one line, without the signs that end a cell, begin a tag or a link."""
    escaped = _term(text).replace("<", "&lt;").replace("|", "\\|")
    return escaped.replace("[", "\\[").replace("*", "\\*")


def _term(text: str) -> str:
    """What goes between backticks, where a sign is a sign (also "|", in the Markdown of MkDocs)."""
    return " ".join(text.split())
