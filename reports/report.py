#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the report: one HTML page that reads as the evaluation section of a paper.

    python3 reports/report.py --measured build/bench.jsonl --recorded reports/h200.jsonl --out reports/out

Measured: what `cairn bench --json` and `cairn generate --json` gave on this machine.  Recorded: the
last full run on an H200, in the repository.  If this machine has a GPU, its rows are shown and the
recording is what they are compared with; if not, the recording is shown, and said to be one, and this
machine's CPU rows have a table of their own.  The page depends on the records alone.  Bad input
gets one line that names file and line, and exit status 2.

report_records   reading        report_views    names of cases and members     report_peers   other libraries
report_claims    verdicts       report_page     numbering, tables, numbers     report_plots   drawings
report_dsmem, report_collectives, report_ops    the sections
report_fused, report_fused_claims    the fused operations         report_verdicts  what a verdict is
report_rdma, report_rdma_claims      GPU-initiated RDMA
report_serving, report_serving_claims    the serving engine       report_tree, report_timeline    its own drawings
"""

import argparse
import os
import sys

import compare
import report_claims
import report_collectives
import report_dsmem
import report_fused
import report_ops
import report_plots as plots
import report_rdma
import report_serving
import report_views as views
from report_page import DASH, Html, Page, code, esc, join, listing, num, percent, tag, tbps, us
from report_records import BadRecords, Ceilings, Machine, Rows, load

TITLE = "Cairn: what this machine does, and what the papers say"


COUNTED = report_rdma.KNOWN | report_serving.KNOWN  # rows of the processor that are no operation of a table


class Context:
    """What the sections read: the rows shown, and their ceilings."""

    def __init__(self, rows):
        self.rows, self.ceilings = rows, Ceilings(rows)


def machine_table(page, machine, source):
    page.table(
        "The machine that the figures of this page were taken on, unless they say otherwise.",
        ["what", "as recorded"],
        [
            ["GPU", machine.name()],
            ["driver", ", ".join(machine.drivers) or "not recorded"],
            ["SM clock at the rows' ends", machine.clock()],
            [
                "digest of the sources",
                join([code(s) for s in machine.sources], ", ") if machine.sources else "not recorded",
            ],
            ["seed of the inputs", ", ".join(str(s) for s in machine.seeds) or "not recorded"],
            ["rows", join([num(machine.num_rows), ", ", source])],
        ],
    )


def method(page, ctx, machine, source):
    page.section("Machine and method", "method")
    machine_table(page, machine, source)
    page.para(
        "The source is ",
        report_claims.PAPER,
        ", measured on an H100. Its figures stand beside the ones of this "
        "machine; figure and table numbers of the source are the paper's.",
    )
    page.para(
        "A row is verified before it is timed: its result is held against a naive reference in double"
        " precision with a bound derived for every element, run twice and compared bit by bit; what fails is"
        " not timed. Then copies of all its buffers, together more than 1 GiB, are used in turn, so"
        " that every call finds its inputs in memory and not in a cache; ",
        Html("<em>warm</em>"),
        " uses one copy again and again. Inputs are random, because zeros draw less power and raise the"
        " clock. The calls of a sample lie in a CUDA graph that lasts a quarter of a millisecond, so launch"
        " overhead and the grain of the clock vanish; a time is the median of 31 samples, and ",
        Html("<em>p95</em>"),
        " what the 95th percentile lies above it. What happens inside a kernel (latencies, collectives) is"
        " counted in cycles of the SM's clock, averaged over many rounds.",
    )
    page.para(
        "Shares are of what this machine was measured to do in the same run, not of a datasheet, where nothing"
        " else is said. Peers (cuBLASLt; chains of the best separate kernels) run in the same run on the same"
        " inputs. A claim of a source is ",
        Html("<em>reproduced</em>"),
        " or ",
        Html("<em>refuted</em>"),
        " by a rule printed beside it, applied to the records by the program that wrote this page.",
    )
    wrong = [r for r in ctx.rows if r.get("ok") is False]
    if wrong:
        page.missing("rows whose result was wrong", [f"{r.op} {r.case} {r.impl}" for r in wrong])


def claims(page, found):
    page.section("Claims of the sources", "claims")
    page.para(
        "Each claim is cut into parts that a rule can decide. It is reproduced if all parts hold, refuted if"
        " one does not, and not measurable here if rows are missing. ClusterFusion's machine (CF) is an H100 with"
        " 2.96 TB/s of measured memory bandwidth; absolute figures may differ for that reason, and the parts"
        " say which. What was counted and not timed is called simulated."
    )
    page.table(
        "The verdicts.",
        ["claim", "what the source says", "verdict", "because"],
        [[Html(f'<a href="#{c.id}">{c.id}</a>'), c.title, tag(*c.verdict()), because(c)] for c in found],
    )
    for c in found:
        page.add(Html(f'<div class="claim" id="{c.id}">'))
        page.add(Html(f"<h3>{esc(c.id)} {tag(*c.verdict())}</h3>"))
        page.para(Html("<em>"), c.title, Html("</em>"), f". {c.source}. {c.method}")
        marks = {True: tag("good", "holds"), False: tag("bad", "does not"), None: tag("none", "no records")}
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
        )
        page.add(Html("</div>"))


def because(claim):
    kind, _ = claim.verdict()
    if kind == "good":
        return "; ".join(f"{p.what}: {p.here}" for p in claim.parts[:2])
    if kind == "bad":
        return "; ".join(f"{p.what}: {p.why}" for p in claim.failing())
    return join(["missing: ", listing([p.needs for p in claim.lacking()])])


def targets(page, found):
    page.section("Figures this project set itself", "targets")
    marks = [
        [
            t.what,
            t.wanted,
            t.here if t.reached is not None else join(["needs ", code(t.needs)]),
            tag(*t.verdict()),
        ]
        for t in found
    ]
    counts = [sum(t.reached is v for t in found) for v in (True, False, None)]
    page.table(
        f"Of {len(found)} figures, {counts[0]} are reached, {counts[1]} are not, {counts[2]} are not measured"
        " here.",
        ["figure", "wanted", "this machine", "verdict"],
        marks,
        "Peers are those of the fastest library measured on an H200 (rmsnorm, silu-mul, rope, sampling:"
        " FlashInfer 0.6.17). How long make check takes, and how many cases it runs, it prints itself.",
    )


def cpu(page, rows):
    """The host tables of this machine, with their own ceilings."""
    found = [r for r in rows if not r.on_gpu and r.ns and r.op not in COUNTED]
    if not found:
        return
    page.section("The CPU tables", "cpu")
    host = Rows(found)
    tops = Ceilings(host)
    page.para(
        "The same operations in C with OpenMP, which is what the engine runs on without a GPU, on ",
        Machine(host).name(),
        ". Ceilings of this processor in this run: ",
        num(tops.gbps()),
        " GB/s of reads",
        f", {num(tops.tflops() * 1000)} GFLOP/s of matrix product." if tops.tflops() else ".",
    )
    table = []
    for op in host.ops():
        table.append([op])
        for r in host.find(op):
            share, which = tops.share(r)
            # The ceiling itself is a row too; a cached row may lie above it, and says so.
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
        "CPU rows of this machine.", ["case", "table", ">µs", ">GB/s", ">GFLOP/s", ">of ceiling"], table
    )


def changes(page, measured, recorded):
    """This run beside the recording: only where both are of the same GPU."""
    pairs, _ = compare.compare(recorded, measured)
    page.section("Against the recording", "changes")
    moved = [(a, b, v) for a, b, v in pairs if v != "same"]
    if not pairs:
        page.para(
            "The recording in the repository was taken on another GPU or has no row in common with this run."
        )
        return
    page.para(
        f"Of {len(pairs)} rows that both have, {len(pairs) - len(moved)} are the same within the noise (twice"
        f" the spread), {sum(v == 'better' for _, _, v in moved)} are faster here and"
        f" {sum(v == 'worse' for _, _, v in moved)} slower."
    )
    if moved:
        moved.sort(key=lambda m: m[0].ns / m[1].ns)
        page.table(
            "Rows that differ by more than the noise, the slowest first.",
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
    """The cards on top: what a hurried reader should take away."""
    cards = []
    read = ctx.ceilings.gbps()
    if read:
        cards.append(card(f"{tbps(read)} TB/s", "read stream"))
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
        card(f"{sum(t.reached is True for t in found_targets)} of {len(found_targets)}", "figures reached")
    )
    return join([Html("<div class=cards>"), join(cards), Html("</div>")])


def counted(measured, recorded):
    """What the sections on RDMA and serving show of the processor: of this run, or else of the recording, op by op."""
    found = []
    for op in sorted(COUNTED):
        for rows in (measured, recorded or ()):
            here = [r for r in rows if r.op == op and not r.on_gpu and r.get("ok") is not False]
            if here:
                found += here
                break
    return found


def build(measured, recorded, recorded_name):
    """The page as text.  recorded: Rows or None; recorded_name: how the text calls its file."""
    here = measured.keep(lambda r: r.on_gpu)
    there = recorded.keep(lambda r: r.on_gpu) if recorded is not None else Rows([])
    shown, banner = here, ""
    source = "measured on this machine"
    if not len(here) and len(there):
        shown = there
        source = join(["recorded in ", code(recorded_name)])
        banner = join(
            [
                Html(
                    "<div class=banner><b>No GPU was found on this machine.</b> All GPU figures below are a"
                    " recording, made on "
                ),
                Machine(there).name(),
                " and kept in ",
                code(recorded_name),
                "; nothing of them was measured here. What was measured here are the CPU tables",
                Html(' (<a href="#cpu">at the end</a>)') if len(measured) else ", of which there are no rows",
                Html(".</div>"),
            ]
        )
    elif not len(here):
        source = "none"
        banner = join(
            [
                Html(
                    "<div class=banner><b>No GPU was found on this machine, and there is no recording of"
                    " one.</b> Only the CPU tables hold figures; every other section says what it"
                    " lacks.</div>"
                )
            ]
        )
    kept = shown.keep(lambda r: r.get("ok") is not False or r.op == "generate")
    ctx = Context(Rows([*kept, *counted(measured, recorded)]))
    page = Page(TITLE)
    machine = Machine(shown)
    found_claims = report_claims.claims(ctx.rows, ctx.ceilings)
    found_targets = report_claims.targets(ctx.rows, ctx.ceilings)

    method(page, Context(shown), machine, source)
    for section in (
        report_ops.ceilings,
        report_dsmem.dsmem,
        report_collectives.collectives,
        report_ops.row_ops,
        report_ops.gemm,
        report_ops.attention,
        report_fused.section,
        report_ops.engine,
        report_ops.decode_step,
        report_rdma.section,
        report_serving.section,
        report_ops.others,
    ):
        section(page, ctx)
    claims(page, found_claims)
    targets(page, found_targets)
    if len(here) and len(there):
        changes(page, here, there)
    cpu(page, measured)
    if not plots.available():
        page.note("matplotlib was not found: tables stand in the place of plots.")
    page.add(
        Html(
            f"<footer>Written by {code('make report')} from {num(len(measured))} measured and "
            f"{num(len(recorded) if recorded is not None else 0)} recorded rows. "
            "The schema of a record is in reports/README.md.</footer>"
        )
    )
    where = machine.name() if len(shown) else "No GPU rows"
    if machine.drivers:
        where += f", driver {', '.join(machine.drivers)}"
    lead = join(
        [
            Html('<p class="lead">'),
            (
                f"{where}. Every figure is measured by this repository's own program, beside its peers and"
                " beside"
            ),
            " what the source says.",
            Html("</p>"),
        ]
    )
    return page.html(
        join([Html(f"<h1>{esc(TITLE)}</h1>"), lead, banner, summary(ctx, found_claims, found_targets)])
    )


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measured", required=True, metavar="FILE", help="records of this machine")
    parser.add_argument("--recorded", metavar="FILE", help="records kept in the repository")
    parser.add_argument("--out", required=True, metavar="DIR", help="gets index.html")
    args = parser.parse_args(argv)
    try:
        measured = load(args.measured)
        recorded = load(args.recorded) if args.recorded and os.path.exists(args.recorded) else None
        if args.recorded and recorded is None:
            print(f"report: {args.recorded}: not there: nothing recorded is shown", file=sys.stderr)
        text = build(measured, recorded, args.recorded or "")
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
