"""The elements of a report, and their rendering as one HTML page that loads nothing.

All text is escaped here and nowhere else. Only the style and the figures are inserted unescaped; figures are SVG that
was parsed and serialized (`headrace.pipeline.report.figures`). The page's content security policy forbids scripts and
loading, so that a name that was left unescaped by mistake could do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final

from headrace.pipeline.report.style import STYLE
from headrace.pipeline.report.words import Quantity, unit_of_all

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIR: Final = 2
"""Number of columns of a table that fits any screen if its numbers may be wrapped."""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    title: str
    number: bool = False
    """Whether it holds numbers, which are right-aligned."""
    whole: bool = False
    """Whether its texts are short and never wrapped."""
    roomy: bool = False
    """Whether its texts are sentences, which need a minimum width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; the first column is the row's heading. A column of quantities has one unit, beside its title."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str | Quantity, ...], ...]
    folded: bool = False
    """Whether only the caption is shown until it is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot; ``description`` is for screen readers."""

    caption: str
    description: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Sentences, followed by tables and figures in order."""

    sentences: tuple[str, ...] = ()
    parts: tuple[Table | Figure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section with a heading; links refer to its ``anchor``."""

    anchor: str
    title: str
    content: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report."""

    title: str
    about: str
    """A line below the title."""
    sections: tuple[Section, ...]


def html(page: Page) -> str:
    """Return the whole document."""
    return "\n".join(_document(page)) + "\n"


def _document(page: Page) -> Iterator[str]:
    title = escape(page.title)
    yield "<!DOCTYPE html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield '<meta name="generator" content="headrace pipeline report">'
    yield f"<title>{title}</title>"
    yield f"<style>\n{STYLE}</style>"
    yield "</head>"
    yield "<body>"
    yield f"<header><h1>{title}</h1><p>{escape(page.about)}</p></header>"
    yield '<nav aria-label="Sections"><ul>'
    for section in page.sections:
        yield f'<li><a href="#{escape(section.anchor)}">{escape(section.title)}</a></li>'
    yield "</ul></nav>"
    yield "<main>"
    for section in page.sections:
        yield from _section(section)
    yield "</main>"
    yield "</body>"
    yield "</html>"


def _section(section: Section) -> Iterator[str]:
    anchor = escape(section.anchor)
    yield f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
    yield f'<h2 id="{anchor}-title">{escape(section.title)}</h2>'
    for sentence in section.content.sentences:
        yield f"<p>{escape(sentence)}</p>"
    for part in section.content.parts:
        yield from _figure(part) if isinstance(part, Figure) else _table(part)
    yield "</section>"


def _figure(figure: Figure) -> Iterator[str]:
    yield f'<figure role="group" aria-label="{escape(figure.description)}">'
    yield f"<figcaption>{escape(figure.caption)}</figcaption>"
    yield f'<div class="wide">{figure.svg}</div>'
    yield "</figure>"


def _in_units(table: Table) -> Table:
    """Return the table with its quantities as text, each column in one unit that its title names."""
    columns, cells = [], []
    for index, column in enumerate(table.columns):
        values = [row[index] for row in table.rows]
        quantities = [value for value in values if isinstance(value, Quantity)]
        if quantities:
            size, unit = unit_of_all(quantities)
            column = replace(column, title=f"{column.title}, {unit}")
            values = [value.in_unit(size) if isinstance(value, Quantity) else value for value in values]
        columns.append(column)
        cells.append(values)
    return replace(table, columns=tuple(columns), rows=tuple(zip(*cells, strict=True)))


def _table(table: Table) -> Iterator[str]:
    table = _in_units(table)
    caption = escape(table.caption)
    if table.folded:
        yield f"<details><summary>{caption}</summary>"
    # A table wider than the window scrolls on its own, also with the keyboard.
    kind = ' class="pairs"' if len(table.columns) == PAIR else ""
    yield f'<div class="wide" role="region" tabindex="0" aria-label="{caption}"><table{kind}>'
    if not table.folded:
        yield f"<caption>{caption}</caption>"
    heads = "".join(f'<th scope="col"{_kind(column)}>{escape(column.title)}</th>' for column in table.columns)
    yield f"<thead><tr>{heads}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield f"<tr>{''.join(_cells(table, row))}</tr>"
    yield "</tbody></table></div>"
    if table.folded:
        yield "</details>"


def _cells(table: Table, row: tuple[str | Quantity, ...]) -> Iterator[str]:
    for index, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
        text = str(cell)
        # Names may be in right-to-left scripts; <bdi> limits the effect to the cell.
        shown = escape(text) if column.number else f"<bdi>{escape(text)}</bdi>"
        tag, scope = ("td", "") if index else ("th", ' scope="row"')
        yield f"<{tag}{scope}{_kind(column)}>{shown}</{tag}>"


def _kind(column: Column) -> str:
    if column.number:
        return ' class="n"'
    return ' class="k"' if column.whole else ' class="r"' if column.roomy else ""
