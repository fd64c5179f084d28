# SPDX-License-Identifier: Apache-2.0
"""The page: numbered sections, figures and tables, and the format of numbers.

Everything is escaped unless it is already Html.  A figure has its numbers in a folded table beneath it;
without a plot (no matplotlib) the table is shown instead.  The page refers to no external resource and has
no date: equal records give equal bytes.
"""

import html
import re

CSS = """
:root { --ink: #1b1f24; --soft: #57606a; --rule: #d0d7de; --faint: #f4f6f8; --link: #0b5cad;
  --good: #00664b; --bad: #a33b00; --none: #57606a;
  --serif: Charter, "Bitstream Charter", "Source Serif 4", Cambria, Georgia, "DejaVu Serif", serif;
  --sans: "Inter", "Helvetica Neue", Arial, "Liberation Sans", "DejaVu Sans", sans-serif; }
* { box-sizing: border-box; }
html { background: #fff; color: var(--ink); }
body { margin: 0 auto; max-width: 56rem; padding: 3rem 1.5rem 6rem; font: 17px/1.55 var(--serif); }
h1 { font: 600 2.1rem/1.2 var(--serif); margin: 0 0 .3rem; }
h2 { font: 600 1.45rem/1.25 var(--serif); margin: 3.2rem 0 .6rem; padding-top: .9rem;
  border-top: 1px solid var(--rule); }
h3 { font: 600 1.12rem/1.3 var(--serif); margin: 2rem 0 .4rem; }
.no { color: var(--soft); font-weight: 400; margin-right: .6em; }
.lead { color: var(--soft); margin: 0 0 1.6rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
code { font: .86em "DejaVu Sans Mono", Menlo, Consolas, monospace; background: var(--faint);
  padding: .05em .3em; border-radius: 3px; }
nav { font: 14px/1.7 var(--sans); columns: 2; column-gap: 2rem; margin: 1.6rem 0 0; }
nav a { display: block; color: var(--ink); } nav .no { display: inline-block; width: 1.4em; }
.banner { font: 15px/1.5 var(--sans); border-left: 4px solid #b36b00; background: #fdf6e9;
  padding: .8rem 1rem; margin: 1.4rem 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .8rem;
  margin: 1.6rem 0; font-family: var(--sans); }
.card { border: 1px solid var(--rule); border-top: 3px solid var(--link); padding: .6rem .9rem .7rem; }
.card b { display: block; font: 600 1.45rem/1.2 var(--sans); font-variant-numeric: tabular-nums; }
.card span { display: block; font-size: 13px; line-height: 1.4; color: var(--soft); }
figure { margin: 1.8rem 0; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption, caption { font: 14px/1.5 var(--sans); color: var(--ink); text-align: left; }
figcaption { margin-top: .5rem; }
caption { caption-side: top; padding-bottom: .45rem; }
figcaption b:first-child, caption b:first-child { margin-right: .35em; }
figcaption i, caption i { font-style: normal; color: var(--soft); }
.wide { overflow-x: auto; margin: 1.6rem 0; }
table { border-collapse: collapse; width: 100%; font: 13.5px/1.4 var(--sans);
  font-variant-numeric: tabular-nums; }
thead th { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); }
tbody tr:last-child td { border-bottom: 1.5px solid var(--ink); }
tbody td { border-bottom: 1px solid #eaeef2; }
th, td { padding: .28rem .6rem; text-align: left; vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; } th small { font-weight: 400; color: var(--soft); }
th:first-child, td:first-child { padding-left: .2rem; }
td code { font-size: 12px; padding: 0 .2em; }
.many { font-size: 12.5px; } .many th, .many td { padding-left: .3rem; padding-right: .3rem; }
.many td code { font-size: 11px; }
.r { text-align: right; white-space: nowrap; }
tr.group td { font-weight: 600; padding-top: .8rem; border-bottom: 1px solid var(--rule); }
td.dim, .dim { color: var(--soft); }
.note { font: 13px/1.5 var(--sans); color: var(--soft); margin: .4rem 0 1.4rem; }
.missing { font: 14px/1.5 var(--sans); color: var(--soft); border: 1px dashed var(--rule);
  padding: .6rem .9rem; margin: 1.2rem 0; }
details { margin-top: .5rem; font-family: var(--sans); }
summary { font: 13px/1.5 var(--sans); color: var(--soft); cursor: pointer; }
.tag { display: inline-block; font: 600 13px/1.5 var(--sans); padding: 0 .55em; border-radius: 3px;
  border: 1px solid currentColor; white-space: nowrap; }
.tag.good { color: var(--good); background: #e8f5f0; }
.tag.bad { color: var(--bad); background: #fdf0e8; }
.tag.none { color: var(--none); background: var(--faint); }
.claim { margin: 2rem 0 0; }
.claim h3 { display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: baseline; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--rule);
  font: 13px/1.6 var(--sans); color: var(--soft); }
@media (max-width: 40rem) { body { padding: 1.5rem 1rem 4rem; font-size: 16px; } nav { columns: 1; } }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } details { display: none; }
  h2, h3 { break-after: avoid; } figure, tr, .card { break-inside: avoid; } }
"""


class Html(str):
    """Text that is already markup."""


def esc(value):
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts, between=""):
    return Html(esc(between).join(esc(p) for p in parts))


def tag(kind, text):
    return Html(f'<span class="tag {esc(kind)}">{esc(text)}</span>')


def code(text):
    return Html(f"<code>{esc(text)}</code>")


DASH = "\u2013"


def num(value, digits=3):
    """A number with `digits` significant digits, all digits of its integer part, no exponent below 10^7."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{int(value):,}".replace(",", "\u202f") if abs(value) >= 10000 else str(int(value))
    return num(round(value)) if 1000 <= abs(value) < 1e7 else f"{value:.{digits}g}"


def fixed(value, places):
    return DASH if value is None else f"{value:.{places}f}"


def us(ns):
    """Nanoseconds as microseconds."""
    if ns is None:
        return DASH
    value = ns / 1000
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else num(round(value))


def tbps(gbps):
    """GB/s as TB/s."""
    return DASH if gbps is None else f"{gbps / 1000:.2f}"


def percent(share):
    return DASH if share is None else f"{share * 100:.0f}%" if share >= 0.095 else f"{share * 100:.1f}%"


def size_name(num_bytes):
    """4096 -> 4 KiB."""
    if num_bytes is None:
        return DASH
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num(num_bytes / unit)} {name}"
    return f"{num(num_bytes)} B"


def listing(names, most=8):
    """a, b, c and 4 more."""
    names = list(names)
    shown = [code(n) for n in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return (
        shown[0] if len(shown) == 1 else join([join(shown[:-1], ", "), " and ", shown[-1]]) if shown else ""
    )


class Page:
    def __init__(self, title):
        self.title = title
        self.body, self.sections = [], []
        self.num_figures = self.num_tables = self.num_sub = 0
        self.card = ""  # named in each caption, unless figure() or table() is told another one

    def add(self, text):
        self.body.append(esc(text))

    def section(self, title, anchor):
        self.sections.append((title, anchor))
        self.num_sub = 0
        self.add(
            Html(f'<h2 id="{esc(anchor)}"><span class="no">{len(self.sections)}</span>{esc(title)}</h2>')
        )

    def sub(self, title):
        self.num_sub += 1
        self.add(Html(f'<h3><span class="no">{len(self.sections)}.{self.num_sub}</span>{esc(title)}</h3>'))

    def para(self, *parts, kind=None):
        self.add(Html(f'<p{f" class={kind}" if kind else ""}>{join(parts)}</p>'))

    def note(self, *parts):
        self.para(*parts, kind="note")

    def missing(self, what, names=(), why=""):
        """Lists rows that a section lacks."""
        text = join(["Not in the records: ", what])
        if names:
            text = join([text, " (", listing(names), ")"])
        self.add(Html(f'<p class="missing">{join([text, why or "."])}</p>'))

    def numbered(self, kind, number, caption, of):
        of = self.card if of is None else of
        return join([label(kind, number), join([Html("<i>"), of, Html(".</i> ")]) if of else "", caption])

    def table(self, caption, columns, rows, note=None, of=None):
        """columns: titles, right-aligned if they start with '>'; a row with one cell is a heading.  of: the card."""
        self.num_tables += 1
        self.add(
            Html(
                "<div"
                f' class="wide">{table_html(columns, rows, self.numbered("Table", self.num_tables, caption, of))}'
                "</div>"
            )
        )
        if note:
            self.note(note)

    def figure(self, plot, caption, columns, rows, of=None):
        """plot: SVG text, or None: then a table of the numbers replaces it.  of: the card."""
        self.num_figures += 1
        text = self.numbered("Figure", self.num_figures, caption, of)
        numbers = table_html(columns, rows)
        if plot is None:
            self.add(
                Html(f'<figure><div class="wide">{numbers}</div><figcaption>{text}</figcaption></figure>')
            )
            return
        plot = own_ids(plot, f"f{self.num_figures}-")
        self.add(
            Html(
                f"<figure>{plot}<figcaption>{text}</figcaption><details><summary>The numbers</summary>"
                f'<div class="wide">{numbers}</div></details></figure>'
            )
        )

    def html(self, head):
        """The whole document; head: the part before the list of sections."""
        nav = "".join(
            f'<a href="#{esc(anchor)}"><span class="no">{i}</span>{esc(title)}</a>'
            for i, (title, anchor) in enumerate(self.sections, 1)
        )
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{esc(self.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
            f"{esc(head)}\n<nav>{nav}</nav>\n"
            + "\n".join(self.body)
            + "\n</body>\n</html>\n"
        )


def label(kind, number):
    return Html(f"<b>{kind} {number}.</b>")


MANY = 8  # a table with this many columns or more has a smaller font


def table_html(columns, rows, caption=None):
    right = [str(c).startswith(">") for c in columns]
    out = ['<table class="many">' if len(columns) >= MANY else "<table>"]
    if caption:
        out.append(f"<caption>{esc(caption)}</caption>")
    out.append("<thead><tr>")
    for column, r in zip(columns, right):
        text = Html(column[1:]) if r and isinstance(column, Html) else column[1:] if r else column
        out.append(f'<th{" class=r" if r else ""}>{esc(text)}</th>')
    out.append("</tr></thead><tbody>")
    for row in rows:
        if len(row) == 1 and len(columns) > 1:
            out.append(f'<tr class="group"><td colspan="{len(columns)}">{esc(row[0])}</td></tr>')
            continue
        cells = (
            f'<td{" class=r" if r else ""}>{esc(DASH if c is None else c)}</td>' for c, r in zip(row, right)
        )
        out.append(f'<tr>{"".join(cells)}</tr>')
    out.append("</tbody></table>")
    return Html("".join(out))


def own_ids(svg, prefix):
    """Makes the identifiers of one drawing unique on the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    return Html(svg)
