#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the report: one HTML page in the form of a paper's evaluation section.

    python3 reports/report.py --measured build/bench.jsonl --out reports/out

--measured: records of `cairn bench --json` and `cairn generate --json` on this machine.  --recorded, which may be
given several times: recordings of cards, by default every reports/*.jsonl.  On a machine with a GPU the page shows
its own rows and compares them with the recording of the same card, if there is one.  Without a GPU it shows the
recording of an H200, labelled as such, and this machine's CPU rows in a separate table.  A table shows the main
figures of all cards side by side.  The page depends only on the records.  Malformed input gives one line with file
and line number, and exit status 2.

base/        records (reading them), page (numbering, tables), plots, views (names of cases and members), verdicts
claims/      the papers' claims with their rules: all_claims, and a module for each group
sections/    the sections of the page: operations, dsmem, collectives, energy, attention, ladder (attention in steps), fused,
             rdma, serving, ranks (several GPUs), disagg (simulated); cards (recordings side by side); drawings of the prefix tree and of the timeline
tests/       on synthetic records (samples)
"""

import argparse
import os
import sys

import compare
from base import plots, views
from claims import all_claims
from sections import attention_section, cards, collectives, disagg_section, dsmem, energy, fused_section, ladder, operations, overlap_section, ranks_section, rdma_section, serving_section, validate_section
from base.page import DASH, Html, Page, code, esc, join, listing, num, percent, tag, tbps, us
from sections.cards import COUNTED, counted, derived
from base.records import BadRecords, Ceilings, Machine, Rows, load

TITLE = "Cairn: measurements on this machine and the claims of the papers"


class Context:
    """The input of the sections: the rows shown, and their ceilings."""

    def __init__(self, rows):
        self.rows, self.ceilings = rows, Ceilings(rows)


def machine_table(page, machine, source):
    page.table(
        "The machine that measured the figures on this page, unless stated otherwise.",
        ["property", "as recorded"],
        [
            ["GPU", machine.name()],
            ["driver", ", ".join(machine.drivers) or "not recorded"],
            ["SM clock", machine.clock()],
            [
                "digest of the sources",
                join([code(s) for s in machine.sources], ", ") if machine.sources else "not recorded",
            ],
            ["seed of the inputs", ", ".join(str(s) for s in machine.seeds) or "not recorded"],
            ["rows", join([num(machine.num_rows), ", ", source])],
        ],
        of="",
    )


def method(page, ctx, machine, source):
    page.section("Machine and method", "method")
    machine_table(page, machine, source)
    page.para(
        "The source is ",
        all_claims.PAPER,
        ", measured on an H100. Its figures are shown beside those of this machine; numbers of figures and tables"
        " are the paper's.",
    )
    page.para(
        "A row is verified before it is timed: its result is compared with a naive double-precision reference, with a"
        " bound derived for every element, and must be bitwise equal in two runs. A row that fails is not timed. For"
        " timing, copies of all its buffers, together more than 1 GiB, are used in turn, so that every call finds its"
        " inputs in memory and not in a cache; ",
        Html("<em>warm</em>"),
        " times use a single copy. Inputs are random, because zeros draw less power and so raise the clock. The calls"
        " of a sample are captured in a CUDA graph that lasts a quarter of a millisecond, which makes launch overhead"
        " and clock resolution negligible. A time is the median of 31 samples, and ",
        Html("<em>p95</em>"),
        " is the distance from the median to the 95th percentile. Latencies and collectives inside a kernel are"
        " measured in SM clock cycles, averaged over many rounds.",
    )
    page.para(
        "Unless stated otherwise, shares are relative to what this machine reached in the same run, not to a"
        " datasheet. Peers (cuBLASLt; cuDNN; FlashInfer; chains of the best separate kernels) run in the same run on the same"
        " inputs, unless a table marks them. A claim of a source is ",
        Html("<em>reproduced</em>"),
        " or ",
        Html("<em>refuted</em>"),
        " by a rule that is printed beside it and applied to the records by the program that wrote this page.",
    )
    wrong = [r for r in ctx.rows if r.get("ok") is False]
    if wrong:
        page.missing("rows with a wrong result", [f"{r.op} {r.case} {r.impl}" for r in wrong])


def claims(page, found):
    page.section("Claims of the sources", "claims")
    page.para(
        "Each claim is divided into parts that a rule can decide. A claim is reproduced if all parts hold, refuted if"
        " none of the measured parts holds, and refuted in part if only some of them do. If rows are missing and no"
        " measured part fails, the claim is not measured. The machine of ClusterFusion (CF) is an"
        " H100 with 2.96 TB/s of measured memory bandwidth; absolute figures may differ for that reason, and the"
        " parts say which. LA is Lamina, FI FlashInfer, AT a survey of attention and NF NanoFlow; reports/README.md lists their claims."
        " Results that were counted rather than timed are called simulated."
    )
    page.table(
        "The verdicts.",
        ["claim", "statement of the source", "verdict", "reason"],
        [[Html(f'<a href="#{c.id}">{c.id}</a>'), c.title, tag(*c.verdict()), because(c)] for c in found],
        of="",
    )
    for c in found:
        page.add(Html(f'<div class="claim" id="{c.id}">'))
        page.add(Html(f"<h3>{esc(c.id)} {tag(*c.verdict())}</h3>"))
        page.para(Html("<em>"), c.title, Html("</em>"), f". {c.source}. {c.method}")
        marks = {True: tag("good", "holds"), False: tag("bad", "does not hold"), None: tag("none", "no records")}
        page.table(
            f"{c.id}, part by part.",
            ["part", "source", "this machine", "rule", "verdict"],
            [
                [
                    p.what,
                    p.source,
                    p.here if p.holds is not None else join(["needs ", code(p.needs)]),
                    p.rule,
                    marks[p.holds],
                ]
                for p in c.parts
            ],
            of="",
        )
        page.add(Html("</div>"))


def because(claim):
    kind, _ = claim.verdict()
    if kind == "good":
        return "; ".join(f"{p.what}: {p.here}" for p in claim.parts[:2])
    if kind == "bad":
        return "; ".join(f"{p.what}: {p.why}" for p in claim.failing())
    return join(["missing: ", listing(list(dict.fromkeys(p.needs for p in claim.lacking())))])


def targets(page, found):
    page.section("Targets of this project", "targets")
    marks = [
        [
            t.what,
            t.wanted,
            t.here if t.measured() else join(["needs ", code(t.needs)]),
            tag(*t.verdict()),
        ]
        for t in found
    ]
    counts = [sum(t.reached is v for t in found) for v in (True, False)]
    other = sum(bool(t.only) for t in found)
    page.table(
        f"Of {len(found)} targets, {counts[0]} are reached, {counts[1]} are not, and"
        f" {len(found) - sum(counts) - other} are not measured here."
        + (f" {other} more are absolute times and rates, which were set for another card." if other else ""),
        ["figure", "target", "this machine", "verdict"],
        marks,
        "The duration and the number of cases of make check are in its own output.",
        of="",
    )


def cpu(page, rows):
    """The host tables of this machine, relative to their own ceilings."""
    found = [r for r in rows if not r.on_gpu and r.ns and r.op not in COUNTED]
    if not found:
        return
    page.section("The CPU tables", "cpu")
    host = Rows(found)
    tops = Ceilings(host)
    page.para(
        "The same operations in C with OpenMP, which the engine uses without a GPU, on ",
        Machine(host).name(),
        ". Ceilings of this processor in this run: ",
        num(tops.gbps()),
        " GB/s read",
        f", {num(tops.tflops() * 1000)} GFLOP/s in a matrix product." if tops.tflops() else ".",
    )
    table = []
    for op in host.ops():
        table.append([op])
        for r in host.find(op):
            share, which = tops.share(r)
            # The ceiling itself is a row too; the share of a cached row may exceed 100%.
            table.append(
                [
                    code(r.case),
                    r.impl,
                    us(r.ns),
                    num(r.number("gbps")) if r.number("gbps") else DASH,
                    num(r.number("tflops") * 1000) if r.number("tflops") else DASH,
                    f"{percent(share)} {which}" if share else DASH,
                ]
            )
    page.table(
        "CPU rows of this machine.",
        ["case", "table", ">µs", ">GB/s", ">GFLOP/s", ">of ceiling"],
        table,
        of=Machine(host).name(),
    )


def changes(page, here, card, recordings):
    """Compares this run with the recording of the same card."""
    page.section("Against the recording", "changes")
    same = next((r for r in recordings if r.card == card), None)
    if same is None:
        page.para(
            f"No row is compared, because the repository has no recording of the {card}. It has ",
            join([join([code(r.name), f", of the {r.card}"]) for r in recordings], "; "),
            ".",
        )
        return
    pairs, _ = compare.compare(same.gpu, here)
    moved = [(a, b, v) for a, b, v in pairs if v != "same"]
    if not pairs:
        page.para("The recording ", code(same.name), " has no row in common with this run.")
        return
    page.para(
        "The recording is ",
        code(same.name),
        f", of the same kind of card. Of {len(pairs)} rows in both, {len(pairs) - len(moved)} agree within the noise"
        " (twice the spread),"
        f" {sum(v == 'better' for _, _, v in moved)} are faster here and"
        f" {sum(v == 'worse' for _, _, v in moved)} are slower."
    )
    if moved:
        moved.sort(key=lambda m: m[0].ns / m[1].ns)
        page.table(
            "Rows that differ by more than the noise, the largest slowdown first.",
            ["op", "case", "table", ">recorded µs", ">here µs", ">change"],
            [
                [a.op, code(a.case), a.impl, us(a.ns), us(b.ns), f"{(b.ns / a.ns - 1) * 100:+.0f}%"]
                for a, b, _ in moved[:40]
            ],
            f"{len(moved) - 40} more are not shown." if len(moved) > 40 else None,
        )


def card(value, text):
    return Html(f"<div class=card><b>{esc(value)}</b><span>{esc(text)}</span></div>")


def summary(ctx, found_claims, found_targets):
    """The cards at the top: the results at a glance."""
    cards = []
    read = ctx.ceilings.gbps()
    if read:
        cards.append(card(f"{tbps(read)} TB/s", "read from memory"))
    named = {t.what: t for t in found_targets}
    latency = views.latency(ctx.rows).peers.get(2)
    if latency:
        cards.append(card(f"{num(latency)} cycles", "DSMEM load, cluster size 2; source: 190"))
    reduce = named.get("all-reduce of 256 B, cluster 4")
    if reduce and reduce.reached is not None:
        cards.append(card(reduce.here.split(" (")[0], "all-reduce of 256 B, cluster 4"))
    engine = named.get("generate, Llama-3-8B shape, batch 1")
    if engine and engine.reached is not None:
        cards.append(card(engine.here.split(" (")[0], "of the read stream: Llama-3-8B step, batch 1"))
    good = sum(c.verdict()[0] == "good" for c in found_claims)
    bad = sum(c.verdict()[0] == "bad" for c in found_claims)
    cards.append(card(f"{good} of {len(found_claims)}", f"claims of the sources reproduced; {bad} refuted"))
    cards.append(
        card(f"{sum(t.reached is True for t in found_targets)} of {len(found_targets)}", "targets reached")
    )
    return join([Html("<div class=cards>"), join(cards), Html("</div>")])


def banner_of(here, shown, recordings, has_cpu_rows):
    """What the reader must know about the origin of the figures, or ''."""
    known = [r for r in recordings if r.card]
    if here.card:
        if not known or any(r.card == here.card for r in known):
            return ""
        return join(
            [
                Html("<div class=banner><b>The repository has no recording of this machine's card, the "),
                here.card,
                Html(
                    '.</b> All GPU figures below were measured on this machine; <a href="#cards">a table</a> shows the'
                    " recorded cards beside it: "
                ),
                ", ".join(r.card for r in known),
                Html(".</div>"),
            ]
        )
    if not shown.card:
        return Html(
            "<div class=banner><b>No GPU was found on this machine, and there is no recording of one.</b> Only the CPU"
            " tables contain figures; every other section lists the rows that it lacks.</div>"
        )
    return join(
        [
            Html(
                "<div class=banner><b>No GPU was found on this machine.</b> All GPU figures below come from a"
                " recording made on "
            ),
            shown.card,
            " and kept in ",
            code(shown.name),
            "; none of them was measured here. Only the CPU tables were measured here",
            Html(' (<a href="#cpu">at the end</a>)') if has_cpu_rows else ", and there are no rows of them",
            Html(".</div>"),
        ]
    )


def build(measured, recordings=()):
    """The page as text.  recordings: those of cards.recordings()."""
    here = cards.Recording("", measured)
    here.card = here.card or (len(here.gpu) and "unknown card") or ""
    known = [r for r in recordings if r.card]
    shown = here if here.card or not known else known[0]
    source = "measured on this machine" if here.card else cards.source_of(shown) if shown.card else "none"
    banner = banner_of(here, shown, recordings, len(measured) > 0)
    kept = shown.gpu.keep(lambda r: r.get("ok") is not False or r.op == "generate")
    ctx = Context(Rows([*kept, *derived(shown.rows), *counted([measured, shown.rows, *(r.rows for r in recordings)])]))
    page = Page(TITLE)
    page.card = shown.card
    machine = Machine(shown.gpu)
    found_claims = all_claims.claims(ctx.rows, ctx.ceilings)
    found_targets = all_claims.targets(ctx.rows, ctx.ceilings)

    method(page, Context(shown.gpu), machine, source)
    for section in (
        energy.section,
        operations.ceilings,
        dsmem.dsmem,
        collectives.collectives,
        operations.row_ops,
        operations.gemm,
        operations.attention,
        attention_section.section,
        ladder.section,
        fused_section.section,
        operations.engine,
        operations.decode_step,
        rdma_section.section,
        serving_section.section,
        overlap_section.section,
        ranks_section.section,
        disagg_section.section,
        validate_section.section,
        operations.others,
    ):
        section(page, ctx)
    claims(page, found_claims)
    targets(page, found_targets)
    others = [r for r in known if r.card != shown.card]
    if others:
        columns = [(shown.card, source, kept)]
        columns += [(r.card, cards.source_of(r), r.gpu) for r in others]
        cards.section(page, columns)
    if here.card and known:
        changes(page, here.gpu, here.card, known)
    cpu(page, measured)
    if not plots.available():
        page.note("matplotlib was not found: plots are replaced by tables.")
    page.add(
        Html(
            f"<footer>Written by {code('make report')} from {num(len(measured))} measured and "
            f"{num(sum(len(r.rows) for r in recordings))} recorded rows. "
            "The schema of a record is in reports/README.md.</footer>"
        )
    )
    where = machine.name() if shown.card else "No GPU rows"
    if machine.drivers:
        where += f", driver {', '.join(machine.drivers)}"
    lead = join(
        [
            Html('<p class="lead">'),
            (
                f"{where}. Every figure is measured by this repository's own program and shown beside its peers and"
                " beside"
            ),
            " the figures of the source.",
            Html("</p>"),
        ]
    )
    return page.html(
        join([Html(f"<h1>{esc(TITLE)}</h1>"), lead, banner, summary(ctx, found_claims, found_targets)])
    )


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measured", required=True, metavar="FILE", help="records of this machine")
    parser.add_argument(
        "--recorded",
        action="append",
        metavar="FILE",
        help="recording of a card, may be repeated (default: every reports/*.jsonl)",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="directory for index.html")
    args = parser.parse_args(argv)
    try:
        measured = load(args.measured)
        paths = args.recorded or cards.default_paths()
        for path in paths:
            if not os.path.exists(path):
                print(f"report: {path}: file not found: this recording is not shown", file=sys.stderr)
        text = build(measured, cards.recordings([p for p in paths if os.path.exists(p)]))
    except BadRecords as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    try:
        os.makedirs(args.out, exist_ok=True)
        with open(os.path.join(args.out, "index.html"), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        print(f"report: {args.out}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"report: {os.path.join(args.out, 'index.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
