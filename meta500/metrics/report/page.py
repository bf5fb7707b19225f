"""Reports as one HTML file: no script, no network, figures inside, printed cleanly.

Texts are escaped by Jinja2; figures are embedded as SVG images, which can neither run scripts nor load
anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.plots.style import save
from meta500.metrics.report.parts import Figure, Section
from meta500.metrics.run import replace_file

_TEMPLATES = Path(__file__).parent / "templates"
_SOFTWARE = ("meta500", "torch", "numpy", "onnx", "onnxruntime")


@dataclass(frozen=True)
class Heading:
    """What stands above the sections.

    Attributes:
        title: of the page.
        lead: sentences below it.
        facts: pairs of name and value: machine, versions, command, dates.
        warnings: what the reader has to know first, such as that the run was interrupted.
    """

    title: str
    lead: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()


def write_page(
    path: Path,
    heading: Heading,
    sections: Sequence[Section],
    plots: Path,
    files: Sequence[tuple[str, str]] = (),
) -> list[Path]:
    """Draw the figures and write the page.

    Args:
        path: of the HTML file.
        heading: what stands above.
        sections: what is shown.
        plots: folder for the figures, as PNG and PDF.
        files: other files beside the page to link to: name and what it is.

    Returns:
        The paths of the figures' files.

    Raises:
        UserError: the page cannot be written, or two figures have the same name. A figure that cannot be
            drawn or written is named on the page with the reason.
    """
    images: dict[str, str] = {}
    missing: dict[str, str] = {}
    written: list[Path] = []
    for figure in (part for section in sections for part in section.parts if isinstance(part, Figure)):
        if figure.name in images or figure.name in missing:
            raise UserError(f"report '{heading.title}': two figures are called '{figure.name}'")
        try:
            images[figure.name], paths = _drawn(figure, plots)
            written += paths
        except UserError as problem:
            # The rows of a run that was stopped may not suffice for one figure; the others shall be seen.
            missing[figure.name] = str(problem)
    environment = templates()
    kinds = {"Paragraph": "paragraph", "Table": "table", "Figure": "figure", "Findings": "findings"}
    text = environment.get_template("page.html").render(
        heading=heading,
        sections=[
            {
                "title": section.title,
                "anchor": f"section-{number}",
                "parts": [(kinds[type(part).__name__], part) for part in section.parts],
            }
            for number, section in enumerate(sections, start=1)
        ],
        images=images,
        missing=missing,
        plots=os.path.relpath(plots, path.parent),
        files=files,
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
    )
    replace_file(path, text)
    return written


def templates() -> Any:
    """Jinja2's environment of the pages: all text is escaped, an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def facts_of(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Machine, software and command of a run as pairs for :class:`Heading`; what is unknown is left out.

    Args:
        info: contents of run.json.
    """
    environment: Mapping[str, Any] = info.get("environment") or {}
    cpu: Mapping[str, Any] = environment.get("cpu") or {}
    versions: Mapping[str, Any] = environment.get("versions") or {}
    python = (environment.get("python") or {}).get("version")
    software = {"Python": python, **{name: versions.get(name) for name in _SOFTWARE}}
    words, continued = (
        list(map(str, found)) if isinstance(found := info.get(name), list) else []
        for name in ("command", "continued")
    )
    cores, vectors = cpu.get("physical_cores"), ", ".join(map(str, cpu.get("vector") or ()))
    processor = str(cpu.get("model") or "")
    graphics = environment.get("gpus") or []
    pairs = [
        ("Command", " ".join([Path(words[0]).name, *words[1:]]) if words else ""),
        ("Run", str(info.get("id", ""))),
        ("Started", str(info.get("started") or "")),
        ("Finished", str(info.get("finished") or "")),
        ("Continued", ", ".join(continued)),
        ("Processor", ", ".join(filter(None, (processor, f"{cores} cores" if cores else "", vectors)))),
        ("GPU", ", ".join(str(gpu.get("name", gpu)) for gpu in graphics)),
        ("Software", ", ".join(f"{name} {version}" for name, version in software.items() if version)),
    ]
    return [(name, value) for name, value in pairs if value]


def _drawn(figure: Figure, plots: Path) -> tuple[str, list[Path]]:
    """The figure as a data URI, and its files."""
    drawing = figure.draw()
    scratch = plots / f".{figure.name}.{hashlib.sha256(figure.name.encode()).hexdigest()[:8]}.svg"
    try:
        paths = save(drawing, [plots / f"{figure.name}.png", plots / f"{figure.name}.pdf", scratch])
        data = base64.b64encode(scratch.read_bytes()).decode("ascii")
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    return f"data:image/svg+xml;base64,{data}", paths[:2]
