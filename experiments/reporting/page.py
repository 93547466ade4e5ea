"""The parts of an HTML page: one file, no script, no address to fetch anything from.

Plain semantic elements that a phone, a screen reader and a printer understand. Every text is
escaped here.
"""

import base64
import html
import pathlib
from collections.abc import Iterable, Sequence

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; font: 1rem/1.5 system-ui, sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 0.25rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; padding: 0; list-style: none; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 0.5rem; }
.numbers div { background: var(--soft); border-radius: 0.5rem; padding: 0.5rem 0.75rem; }
.numbers dt { font-size: 0.85rem; }
.numbers dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.facts { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: 0.15rem 1rem; }
.facts dt { font-weight: 600; }
.facts dd { margin: 0; min-width: 0; }
.scroll { overflow-x: auto; margin: 0.75rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0.25rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.9rem 0.2rem 0;
  border-bottom: 1px solid var(--line); }
caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); }
td.number, th.number { text-align: right; }
tbody th, td { white-space: nowrap; }
tbody th { position: sticky; left: 0; background: Canvas; }
figure { margin: 1rem 0; }
.picture img { max-width: 100%; height: auto; background: white; border-radius: 0.25rem; }
figcaption { font-size: 0.9rem; }
pre { white-space: pre-wrap; font-size: 0.85rem; }
summary { cursor: pointer; font-weight: 600; margin: 0.5rem 0; }
@media (max-width: 30rem) {
  .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin-bottom: 0.5rem; }
  .picture img { max-width: none; width: 40rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .scroll { overflow: visible; }
  tbody th, td { white-space: normal; }
  table { font-size: 8pt; }
  tr, figure, .numbers div { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
}
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole page: a heading, a sentence, and the sections, each a heading and its HTML."""
    links = "".join(
        f'<li><a href="#{_anchor(name)}">{html.escape(name)}</a></li>' for name, _ in sections
    )
    body = "\n".join(
        f'<section id="{_anchor(name)}"><h2>{html.escape(name)}</h2>\n{content}</section>'
        for name, content in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{html.escape(title)}</h1>\n{text(lead)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def text(words: str) -> str:
    """A paragraph."""
    return f"<p>{html.escape(words)}</p>\n"


def heading(words: str) -> str:
    """A heading inside a section."""
    return f"<h3>{html.escape(words)}</h3>\n"


def verbatim(words: str) -> str:
    """A command or a log line as it is."""
    return f"<pre><code>{html.escape(words)}</code></pre>\n"


def items(lines: Iterable[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>\n"


def numbers(pairs: Iterable[tuple[str, str]]) -> str:
    """The numbers that a reader looks for first."""
    cells = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in pairs
    )
    return f'<dl class="numbers">{cells}</dl>\n'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with what is to be said of each; a name that comes again is not repeated."""
    parts, before = [], None
    for name, value in pairs:
        shown = "" if name == before else html.escape(name)
        parts.append(f"<dt>{shown}</dt><dd>{html.escape(value)}</dd>")
        before = name
    return f'<dl class="facts">{"".join(parts)}</dl>\n'


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the row; it can be scrolled where it is too wide."""
    rows = [list(row) for row in rows]
    aligned = [
        ' class="number"' if rows and all(_is_number(row[column]) for row in rows) else ""
        for column in range(len(header))
    ]
    head = "".join(
        f'<th scope="col"{align}>{html.escape(name)}</th>'
        for name, align in zip(header, aligned, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + f'<th scope="row"{aligned[0]}>{html.escape(row[0])}</th>'
        + "".join(
            f"<td{align}>{html.escape(cell)}</td>"
            for cell, align in zip(row[1:], aligned[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}">'
        f"<table><caption><span>{html.escape(caption)}</span></caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>\n"
    )


def folded(summary: str, content: str) -> str:
    """What is shown on demand."""
    return f"<details><summary>{html.escape(summary)}</summary>\n{content}</details>\n"


def picture(path: pathlib.Path, caption: str) -> str:
    """A PNG file, as a part of the page."""
    encoded = base64.b64encode(path.read_bytes()).decode()
    alternative = html.escape(caption)
    return (
        f'<figure><div class="scroll picture" tabindex="0"><img alt="{alternative}" '
        f'src="data:image/png;base64,{encoded}"></div>'
        f"<figcaption>{alternative}</figcaption></figure>\n"
    )


def _anchor(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def _is_number(cell: str) -> bool:
    return not any(character.isalpha() for character in cell.removeprefix("-")) and bool(cell)
