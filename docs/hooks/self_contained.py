"""Refuses a built site that makes a browser load something from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

# What a browser loads by itself; a link that a reader follows (an <a>) may lead anywhere.
LOADED = frozenset(
    {
        *(("audio", "src"), ("embed", "src"), ("iframe", "src"), ("image", "href"), ("image", "xlink:href")),
        *(("img", "src"), ("img", "srcset"), ("input", "src"), ("link", "href"), ("object", "data")),
        *(("script", "src"), ("source", "src"), ("source", "srcset"), ("track", "src"), ("use", "href")),
        *(("use", "xlink:href"), ("video", "poster"), ("video", "src")),
    }
)
# Links that name the page or its neighbours and load nothing.
RELATIONS = frozenset({"alternate", "author", "canonical", "license", "next", "prev"})
_EXTERNAL = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_STYLE = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])([^"')]+)""", re.IGNORECASE)


def on_post_build(config: Any) -> None:
    """Look through the site (an event of MkDocs)."""
    from mkdocs.exceptions import PluginError

    found = external(Path(config["site_dir"]))
    if found:
        raise PluginError("the site loads what is not its own:\n" + "\n".join(found))


def external(site: Path) -> list[str]:
    """What the files below ``site`` load from elsewhere, as "FILE: ADDRESS", sorted."""
    found = set()
    for path in site.rglob("*"):
        if path.suffix == ".css":
            addresses = _STYLE.findall(path.read_text(encoding="utf-8"))
        elif path.suffix in {".html", ".svg"}:
            addresses = addresses_of(path.read_text(encoding="utf-8"))
        else:
            continue
        found |= {f"{path.relative_to(site)}: {address}" for address in addresses if _EXTERNAL.match(address)}
    return sorted(found)


def addresses_of(page: str) -> list[str]:
    """The addresses that a browser loads to show an HTML or SVG text."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.addresses


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        named = {name: value or "" for name, value in attrs}
        if tag == "link" and set(named.get("rel", "").split()) <= RELATIONS:
            return
        for name, value in named.items():
            if name == "style":
                self.addresses += _STYLE.findall(value)
            elif (tag, name) in LOADED:
                parts = value.split(",") if name == "srcset" else [value]
                self.addresses += [part.split()[0] for part in parts if part.strip()]

    def handle_data(self, data: str) -> None:
        if self._style:
            self.addresses += _STYLE.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._style = False
