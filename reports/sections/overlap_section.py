# SPDX-License-Identifier: Apache-2.0
"""Section of the report: operations side by side on one GPU, and the plans made of them (claims NF-1 to NF-8, NF-12)."""

from base import plots
from base.page import DASH, code, fixed, num
from claims import nanoflow_claims as nano

KNOWN = {"interference", "search", "nano_ablation"}  # operations with a place in this section
SOURCE = {0.8: 0.3, 0.6: 0.8}  # NanoFlow's table 3: the product's share, attention's
NAMES = {
    "streams": "two streams",
    "priority": "attention first",
    "green": "SMs of their own",
    "queue": "one launch",
    "coresident": "same SMs",
}


def searched(rows):
    """Rows of plans: a host computed them from times of the recording's card."""
    return [r for r in rows if r.op == "search"]


def exchange(page, rows):
    """What attention gains for what a product loses, by the way in which they share the GPU."""
    found = nano.pairs(rows)
    if not found:
        page.missing("pairs of operations", ["interference of all products beside dec_*"])
        return
    series, table = [], []
    for how, name in NAMES.items():
        of = [r for r in found if r.get("how") == how]
        if not of:
            continue
        front = {}
        for r in of:  # by product rate in steps of 0.05, the best rate of attention
            at = round(r.number("r") * 20) / 20
            if at not in front or r.number("p") > front[at].number("p"):
                front[at] = r
        series.append((name, [(at, r.number("p")) for at, r in sorted(front.items())]))
        best = max(of, key=lambda r: r.number("r") + r.number("p"))
        watts = [r.number("watts") for r in of if r.number("watts")]
        table.append(
            [
                name,
                num(len(of)),
                code(best.case),
                f"{best.need('sms_a'):.0f} / {best.need('sms_b'):.0f}",
                fixed(best.number("r"), 2),
                fixed(best.number("p"), 2),
                fixed(best.number("r") + best.number("p"), 2),
                num(round(max(watts))) if watts else DASH,
            ]
        )
    page.figure(
        plots.lines(
            series,
            "rate of the product, as a share of its rate alone",
            "of attention",
            points=[(r, p, f"{p:g} in the source") for r, p in SOURCE.items()],
            ticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        ),
        "Pairs of a product and of attention of decoding requests on one GPU: the best rate of attention for each rate of"
        " the product. Both alone would be at (1, 1); taking turns is the line from (1, 0) to (0, 1).",
        ["way", ">pairs", "best pair", ">SMs of each", ">product", ">attention", ">sum", ">most W"],
        table,
    )


def model(page, rows, ceilings):
    row = nano.engine(rows)
    peak = row.number("gemm_tflops") if row else None
    found = nano.alone(rows)
    if not found or not peak or not ceilings.gbps():
        page.missing("operations beside the cost model", ["interference alone", "throughput llama3_8b_1024_512"])
        return
    best = {}
    for r in found:  # the largest of each operation
        name = r.case.split("_m")[0].split("_b")[0]
        if name not in best or (r.number("alone_a_ns") or 0) > best[name].number("alone_a_ns"):
            best[name] = r
    page.table(
        "The cost model beside measured times (NanoFlow's table 2): the longer of FLOPs over the best product's rate and"
        " bytes over the read stream.",
        ["operation", ">measured, µs", ">model, µs", ">TFLOP/s", ">TB/s", ">measured / model"],
        [
            [
                code(r.case),
                num(r.need("alone_a_ns") / 1e3),
                num(r.need("alone_a_ns") / 1e3 * nano.model_share(r, ceilings, peak)),
                num(r.number("tflops_a")),
                num((r.number("gbps_a") or 0) / 1e3),
                fixed(1 / nano.model_share(r, ceilings, peak), 2),
            ]
            for r in best.values()
        ],
    )


def plans(page, rows):
    found = [r for r in rows.find("search") if r.number("predicted_gain")]
    table = [
        [
            code(r.case.partition("_")[2]),
            num(r.number("nanos")),
            fixed(r.number("sequential_ms"), 2),
            fixed(r.number("predicted_ms"), 2),
            fixed(r.number("predicted_gain"), 3),
            f"{100 * (r.number('gap') or 0):.1f}%",
            fixed(r.number("search_s"), 1),
        ]
        for r in found
    ]
    if not table:
        page.missing("plans", ["search *"])
        return
    page.table(
        "Plans of the search: predicted times of a pass. The gap bounds how much better any schedule of these measured times"
        " can be.",
        ["pass", ">nano-batches", ">sequential, ms", ">plan, ms", ">gain", ">gap", ">s to search"],
        table,
    )


def ablation(page, rows):
    table = []
    for (num_rows, decode), hows in sorted(nano.ablations(rows).items()):
        base = hows.get(nano.SEQUENTIAL)
        for how, r in hows.items():
            table.append(
                [
                    f"{num_rows} rows, {decode} decoding",
                    how,
                    fixed(r.number("ms"), 2),
                    fixed(base.number("ms") / r.number("ms"), 3) if base else DASH,
                    fixed(r.number("predicted_ms"), 2),
                    num(round(r.number("watts"))) if r.number("watts") else DASH,
                    num(r.number("sm_mhz") or None),
                    num(r.number("joules")),
                ]
            )
    if not table:
        page.missing("measured plans", ["cairn search --measure plans/GPU_SHAPE_tp1.json --json RECORDING"])
        return
    page.table(
        "Measured plans (NanoFlow's figure 9), in turns in one run. An engine runs a plan only if it gained at least 2%.",
        ["pass", "how", ">ms", ">gain", ">predicted, ms", ">W", ">SM MHz", ">J a pass"],
        table,
    )


def section(page, ctx):
    page.section("Overlap inside one GPU", "overlap")
    if not (ctx.rows.find("interference") or ctx.rows.find("search") or ctx.rows.find("nano_ablation")):
        page.missing("overlap", ["interference", "search", "nano_ablation"])
        return
    page.para(
        "Some operations of a pass are bound by arithmetic, others by memory. If a batch is cut into nano-batches, operations of one"
        " kind on one nano-batch can run at the same time as operations of the other kind on another. This section shows the"
        " profile, the search for a plan and its measurement, for one model. At its power limit, a card gains by overlap only as"
        " much as overlap saves energy."
    )
    exchange(page, ctx.rows)
    model(page, ctx.rows, ctx.ceilings)
    plans(page, ctx.rows)
    ablation(page, ctx.rows)
