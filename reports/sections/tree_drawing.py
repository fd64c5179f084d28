# SPDX-License-Identifier: Apache-2.0
"""The nine steps of the prefix tree (claim AT-13): reading their rows, and drawing them.

Rows: op prefix_trace (serving/kv/prefix_trace_test.c), one per step.  The nodes are those of the tree in the run, named
with the source's letters; nodes evicted in a step are included, with state "-".  The SVG is written directly: boxes and
lines need no plotting library.
"""

from dataclasses import dataclass, field
from html import escape

from base.records import is_number

OP, ROOT, STEPS = "prefix_trace", "a", 9
STATES = {"+": "added", "*": "used", " ": "unchanged", "-": "evicted"}


@dataclass
class Node:
    name: str
    parent: str
    state: str
    edge: tuple  # of (text, tokens)

    @property
    def tokens(self):
        return sum(n for _, n in self.edge)


@dataclass
class Step:
    number: int
    what: str
    nodes: list  # of the tree at the end of the step
    evicted: list
    taken: object = None  # pages in use
    pages: object = None  # pages of the pool
    prompt: object = None  # tokens of this step's prompts
    found: object = None  # how many of them were found in the tree
    by_name: dict = field(default_factory=dict)

    def path(self, node):
        """The texts from the root to the end of a node; None if an ancestor is missing or the parents form a cycle."""
        edges, seen = [], set()
        while node.name not in seen:
            seen.add(node.name)
            edges.append(node.edge)
            if node.parent == ROOT:
                return tuple(piece for edge in reversed(edges) for piece in edge)
            node = self.by_name.get(node.parent)
            if node is None:
                return None
        return None


def node(raw):
    """A node of a row, or None if it is malformed."""
    if not isinstance(raw, dict) or raw.get("state") not in STATES:
        return None
    name, parent, edge = raw.get("name"), raw.get("parent"), raw.get("edge")
    if not all(isinstance(v, str) and v for v in (name, parent)) or name == ROOT or not isinstance(edge, list):
        return None
    pairs = [p for p in edge if isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) and is_number(p[1])]
    if not pairs or len(pairs) != len(edge):
        return None
    return Node(name, parent, raw["state"], tuple((text, n) for text, n in pairs))


def step(record, number):
    """A row as a Step; None if it does not contain a tree."""
    raw = record.get("nodes")
    found = [node(n) for n in raw] if isinstance(raw, list) else [None]
    if None in found:
        return None
    out = Step(
        number,
        str(record.get("what", "")),
        [n for n in found if n.state != "-"],
        [n for n in found if n.state == "-"],
        *(record.number(k) for k in ("pages_taken", "pages", "prompt_tokens", "found_tokens")),
    )
    out.by_name = {n.name: n for n in found}
    whole = len(out.by_name) == len(found) and all(out.path(n) for n in found)
    return out if whole else None


def steps(rows):
    """The nine steps in order, or [] if one is missing, failed or malformed."""
    found = []
    for number in range(1, STEPS + 1):
        record = rows.by_key.get((OP, f"step{number}", "host"))
        one = step(record, number) if record and record.get("ok") is not False else None
        if one is None:
            return []
        found.append(one)
    return found


# ---------------------------------------------------------------- the drawing

WIDTH, GUTTER, LINE, INDENT, GLYPH, SIZE = 860, 24, 18, 20, 8, 10.5
HEAD, FOOT = 40, 16
LETTER = 6.1  # upper bound for the mean width of a character at SIZE
INK, SOFT, WIRE, RULE = "#1b1f24", "#57606a", "#8c959f", "#d0d7de"
LOOK = {"+": "#00664b", "*": "#0060a0", "-": "#a33b00"}
SANS = "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def text(x, y, content, colour=INK, size=SIZE, more=""):
    """content: markup already."""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size:g}"{more}>{content}</text>'


def lines_of(edge, room):
    """Breaks an edge into lines of at most room letters where possible; a line is a list of (text, tokens)."""
    out, used = [], 0
    for piece, tokens in edge:
        length = len(piece) + len(f" {tokens}  ")
        if out and used + length <= room:
            out[-1].append((piece, tokens))
            used += length
        else:
            out.append([(piece, tokens)])
            used = length
    return out


def in_order(one):
    """[(depth, node)] in depth-first order; evicted nodes keep their old places."""
    out = []

    def below(name, depth):
        for child in sorted((n for n in one.by_name.values() if n.parent == name), key=lambda n: n.name):
            out.append((depth, child))
            below(child.name, depth + 1)

    below(ROOT, 1)
    return out


def glyph(x, y, name, state):
    """A node's symbol, recognisable without colour: new nodes are square, evicted ones dashed; unused ones have no colour."""
    colour = LOOK.get(state)
    fill = colour if state in "+*" else "#ffffff"
    stroke = f'fill="{fill}" stroke="{colour or WIRE}" stroke-width="1.2"' + (
        ' stroke-dasharray="2.5 2"' if state == "-" else ""
    )
    if state == "+":
        shape = f'<rect x="{x - GLYPH:g}" y="{y - GLYPH:g}" width="{2 * GLYPH}" height="{2 * GLYPH}" rx="2.5" {stroke}/>'
    else:
        shape = f'<circle cx="{x:g}" cy="{y:g}" r="{GLYPH}" {stroke}/>'
    ink = "#ffffff" if state in "+*" else colour or INK
    return shape + text(x, y + 3.6, escape(name), ink, SIZE, ' text-anchor="middle" font-weight="600"')


def tree(one, left, top, width):
    """(SVG, y of the lower end) of a tree; top: y of the root's line."""
    wires, gone_wires, marks, y = [], [], [], top + LINE / 2
    places = {ROOT: (left + GLYPH, y)}
    marks.append(glyph(left + GLYPH, y, ROOT, " "))
    y += LINE
    for depth, n in in_order(one):
        x = left + GLYPH + depth * INDENT
        px, py = places[n.parent]
        dash = ' stroke-dasharray="2.5 2"' if n.state == "-" else ""
        (gone_wires if dash else wires).append(
            f'<path d="M{px:g} {py + GLYPH:g}V{y:g}H{x - GLYPH:g}" fill="none" stroke="{WIRE}" stroke-width="1"{dash}/>'
        )
        places[n.name] = (x, y)
        marks.append(glyph(x, y, n.name, n.state))
        start = x + GLYPH + 6
        gone, apart = ' text-decoration="line-through"' if n.state == "-" else "", ' dx="7"'
        for line in lines_of(n.edge, (left + width - start) / LETTER):
            pieces = "".join(
                f'<tspan{gone}{apart if i else ""}>{escape(piece)}</tspan>'
                f'<tspan dx="4" fill="{SOFT}" font-size="9">{tokens:g}</tspan>'
                for i, (piece, tokens) in enumerate(line)
            )
            marks.append(text(start, y + 3.6, pieces, LOOK["-"] if gone else INK))
            y += LINE
    return "".join(gone_wires + wires + marks), y - LINE / 2


def aside(one):
    """Text beside a step: memory in use and tokens found."""
    out = []
    if one.taken is not None and one.pages is not None:
        out.append(f"{one.taken:g} of {one.pages:g} pages")
    if one.prompt:
        out.append(f"{one.found or 0:g} of {one.prompt:g} tokens of prompts found")
    return "; ".join(out)


def panel(one, left, top, width):
    body, bottom = tree(one, left, top + HEAD, width)
    head = f'<path d="M{left:g} {top:g}H{left + width:g}" stroke="{RULE}" stroke-width="1"/>'
    head += text(left, top + 16, escape(one.what), INK, 11, ' font-weight="600"')
    head += text(left, top + 30, escape(aside(one)), SOFT, 9.5)
    return head + body, bottom


def legend(top):
    out, x = [], 0
    for state, name, meaning in (
        ("+", "n", "added in this step"),
        ("*", "n", "used in this step"),
        (" ", "n", "unchanged in this step"),
        ("-", "n", "evicted in this step"),
    ):
        out.append(glyph(x + GLYPH + 1, top, name, state))
        out.append(text(x + 2 * GLYPH + 8, top + 3.6, meaning))
        x += 40 + LETTER * len(meaning)
    out.append(text(x, top + 3.6, "a: the root. Each text is followed by its number of tokens; a page holds one token.", SOFT))
    return "".join(out)


def column(found, left, top, width):
    """(SVG, y of the lower end) of panels one below the other."""
    out = []
    for one in found:
        body, bottom = panel(one, left, top, width)
        out.append(body)
        top = bottom + FOOT
    return "".join(out), top


def svg(found):
    """Two columns of nearly equal height, the left one first."""
    width, top = (WIDTH - GUTTER) / 2, 2 * GLYPH + 20
    left, right = min(
        ((column(found[:k], 0, top, width), column(found[k:], width + GUTTER, top, width)) for k in range(len(found) + 1)),
        key=lambda pair: max(bottom for _, bottom in pair),
    )
    height = max(left[1], right[1])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 0 {WIDTH + 2} {height:g}" width="{WIDTH + 2}"'
        f' height="{height:g}" role="img" aria-label="The prefix tree after each of {len(found)} steps"'
        f' font-family="{SANS}">{legend(GLYPH + 2)}{left[0]}{right[0]}</svg>'
    )


def figure(page, rows):
    found = steps(rows)
    if not found:
        page.missing("the nine steps of the prefix tree", [f"{OP} step1 to step{STEPS}"])
        return
    page.figure(
        svg(found),
        "The prefix tree over the nine steps of the source (AT-13), drawn from the contents of the engine's tree after"
        " each step: two chats, queries with the same examples, and several answers to one question, in memory that is"
        " too small for all of them. Nodes have the letters of the source where it gives one.",
        ["step", "node", "below", "state", "text of its edge", ">tokens"],
        [
            cells
            for one in found
            for cells in (
                [[one.what]]
                + [
                    ["", n.name, n.parent, STATES[n.state], " ".join(piece for piece, _ in n.edge), f"{n.tokens:g}"]
                    for _, n in in_order(one)
                ]
            )
        ],
        of="",
    )
