# SPDX-License-Identifier: Apache-2.0
"""Section of the report: cluster collectives and their traffic."""

from base import plots, views
from base.page import DASH, code, join, num, percent, size_name, us


def collectives(page, ctx):
    page.section("Cluster collectives", "collectives")
    page.para(
        "ClusterReduce and ClusterGather inside one kernel: the time from input in the shared memory of each CTA to"
        " the result there, visible to all threads of the CTA, which is the cost inside a fused kernel. The tree is"
        " algorithms 1 and 2 of the source. Off-chip is the same exchange through global memory without a second"
        " launch. Times are cycles of one collective by one cluster alone, averaged over many rounds in a kernel."
    )
    for kind, title in (("reduce", "All-reduce (sum, f32)"), ("gather", "All-gather (f32)")):
        page.sub(title)
        found = [c for c in views.collectives(ctx.rows, kind) if c.cycles and c.size > 1]
        if not found:
            page.missing(
                f"cluster_{kind} rows with cycles",
                [f"cluster_{kind} size*_len*_f32{'_sum' * (kind == 'reduce')}_*"],
            )
            continue
        collective_figure(page, kind, found)
        collective_table(page, ctx, kind, found)
        loaded_table(
            page, kind, found, [c for c in views.collectives(ctx.rows, kind, loaded=True) if c.cycles]
        )
        others = views.other_collectives(ctx.rows, kind)
        if others:
            page.table(
                f"All-{kind}: other types and operators, and the choice of AUTO; one cluster alone.",
                [">cluster", ">bytes per CTA", "type", "operator", "algorithm", ">cycles"],
                [
                    [
                        str(c.size),
                        size_name(c.num_bytes),
                        c.record.dtype,
                        operator(c),
                        views.LABEL[c.algo],
                        num(round(c.cycles)),
                    ]
                    for c in others
                ],
            )
    collective_traffic(page, ctx)


def operator(c):
    rows = c.record.n.get("rows")
    return f"{c.op}, {rows} row{'s' * (rows != 1)}" if rows else c.op or DASH


def loaded_table(page, kind, alone, loaded):
    """The table of the same collectives when all clusters of the GPU run them at once."""
    single = {(c.size, c.num_bytes, c.algo): c.cycles for c in alone}
    both = {
        (c.size, c.num_bytes, c.algo): c.cycles for c in loaded if (c.size, c.num_bytes, c.algo) in single
    }
    algos = [a for a in views.LABEL if any(key[2] == a for key in both)]
    rows = []
    for size, num_bytes in dict.fromkeys(key[:2] for key in both):
        cells = [str(size), size_name(num_bytes)]
        for algo in algos:
            key = (size, num_bytes, algo)
            cells += (
                [num(round(both[key])), f"{both[key] / single[key]:.2f}×"] if key in both else [DASH, DASH]
            )
        rows.append(cells)
    if rows:
        page.table(
            f"All-{kind} by all clusters that fit at once, in cycles, and the ratio to the time of one cluster alone:"
            " whether clusters slow each other down.",
            [">cluster", ">bytes per CTA"] + [h for a in algos for h in (f">{views.LABEL[a]}", ">×")],
            rows,
        )


def collective_figure(page, kind, found):
    algos = [a for a in views.LABEL if any(c.algo == a for c in found)]
    groups = []
    for size in sorted({c.size for c in found}):
        series = [
            (views.LABEL[a], [(c.num_bytes, c.cycles) for c in found if c.size == size and c.algo == a])
            for a in algos
        ]
        groups.append((f"cluster size {size}", [(n, sorted(d)) for n, d in series if d]))
    both = views.pairs(found)
    caption = [f"Cycles of one all-{kind} by bytes per CTA, both axes logarithmic. "]
    if both:
        ratios = [off.cycles / on.cycles for _, _, on, off in both]
        always = "always faster" if min(ratios) > 1 else "not always faster"
        caption.append(
            f"On chip is {min(ratios):.1f} to {max(ratios):.1f} times as fast as off chip: {always}; in the source"
            " (table 1) it is far faster at every length. "
        )
    crossing = crossings(found)
    if crossing:
        caption.append(crossing)
    table = [
        [str(c.size), size_name(c.num_bytes), views.LABEL[c.algo], num(round(c.cycles)), us(c.record.ns)]
        for c in found
    ]
    page.figure(
        plots.panels(groups, "bytes per CTA", "cycles", dashed=(views.LABEL["offchip"],), per_row=4),
        join(caption),
        [">cluster", ">bytes per CTA", "algorithm", ">cycles", ">kernel µs"],
        table,
    )


def crossings(found):
    """A sentence on the fastest algorithm at the smallest and at the largest message."""
    wins = {}
    for c in found:
        if c.on_chip:
            key = (c.size, c.num_bytes)
            if key not in wins or c.cycles < wins[key].cycles:
                wins[key] = c
    sizes = sorted({s for s, _ in wins})
    if not sizes:
        return ""
    size = sizes[-1] if sizes[-1] <= 8 else 8 if 8 in sizes else sizes[-1]
    lengths = sorted(b for s, b in wins if s == size)
    small, large = wins[size, lengths[0]], wins[size, lengths[-1]]
    if small.algo == large.algo:
        return f"At cluster size {size} {views.LABEL[small.algo]} is fastest at every measured length. "
    return (
        f"At cluster size {size} {views.LABEL[small.algo]} is fastest for {size_name(lengths[0])} and"
        f" {views.LABEL[large.algo]} for {size_name(lengths[-1])}: the first saves steps, the second bytes. "
    )


def collective_table(page, ctx, kind, found):
    both = views.pairs(found)
    if not both:
        page.missing("the off-chip rows to compare with", [f"cluster_{kind} size*_len*_offchip"])
        return
    rows = []
    for size, num_bytes, on, off in both:
        tree = next(
            (c.cycles for c in found if (c.size, c.num_bytes, c.algo) == (size, num_bytes, "tree")), None
        )
        per_cycle = views.cluster_bytes_per_cycle(ctx.rows, size, alone=True)
        wire = on.traffic / per_cycle if on.traffic and per_cycle else None
        rows.append(
            [
                str(size),
                size_name(num_bytes),
                num(round(on.cycles)),
                views.LABEL[on.algo],
                num(round(tree)) if tree else DASH,
                num(round(off.cycles)),
                f"{off.cycles / on.cycles:.1f}×",
                percent(wire / on.cycles) if wire else DASH,
            ]
        )
    page.table(
        f"All-{kind}: the fastest algorithm on chip, the source's tree, and off chip, in cycles. The last column is"
        " the share of the measured DSMEM bandwidth that the fastest one reaches: small messages are bound by"
        " latency.",
        [">cluster", ">bytes per CTA", ">on chip", "by", ">tree", ">off chip", ">gain", ">of DSMEM bandwidth"],
        rows,
    )


def collective_traffic(page, ctx):
    page.sub("Traffic")
    page.para(
        "The source models the bytes that cross the network of the cluster as ",
        code("Traffic_Reduce = size N log2 N"),
        " and ",
        code("Traffic_Gather = size N (N - 1)"),
        ". Here they are counted send by send by the schedule that the kernels run.",
    )
    rows = []
    for kind in ("reduce", "gather"):
        found = [
            c for c in views.collectives(ctx.rows, kind) if c.traffic is not None and c.size > 1 and c.on_chip
        ]
        lengths = {c.num_bytes for c in found}
        if not found:
            page.missing(f"counted bytes of cluster_{kind}", ["dsmem_bytes"])
            continue
        length = max(lengths, key=lambda b: (len([c for c in found if c.num_bytes == b]), -b))
        rows.append([f"{kind} of {size_name(length)} per CTA"])
        for size in sorted({c.size for c in found if c.num_bytes == length}):
            counted = {c.algo: c.traffic for c in found if (c.size, c.num_bytes) == (size, length)}
            formula = views.paper_traffic(kind, length, size)
            rows.append(
                [str(size), num(formula)]
                + [num(counted.get(a)) for a in ("tree", "oneshot", "twoshot", "ring")]
                + [
                    (
                        "equal"
                        if counted.get("tree") == formula
                        else DASH if "tree" not in counted else "differs"
                    )
                ]
            )
    if rows:
        page.table(
            "Bytes sent through DSMEM in one collective by all CTAs of a cluster.",
            [
                ">cluster",
                ">source's formula",
                ">tree",
                ">one-shot",
                ">two-shot",
                ">ring",
                "tree against formula",
            ],
            rows,
            "The source's tree sends more than necessary: two-shot and ring reduce with 2 size (N - 1) bytes.",
        )
