# SPDX-License-Identifier: Apache-2.0
"""Section of the report: the profile of distributed shared memory.

Each figure's caption states the result and whether the source, Luo et al. 2025 (ClusterFusion), found
the same; the sentences are chosen by the numbers.
"""

from base import plots, views
from base.page import DASH, fixed, join, num, percent, tbps


def dsmem(page, ctx):
    page.section("Distributed shared memory", "dsmem")
    page.para(
        "The CTAs of a cluster can read and write each other's shared memory over a network between SMs. The source"
        " profiles it on an H100 in its figure 5 and bases its design on the result. This section repeats the profile"
        " and adds what the source omits: ways to move bytes other than loads, the cost of synchronisation, and the"
        " latency of each pair of SMs."
    )
    dsmem_latency(page, ctx)
    dsmem_matrix(page, ctx)
    dsmem_bandwidth(page, ctx)
    dsmem_barriers(page, ctx)
    dsmem_active(page, ctx)


def dsmem_latency(page, ctx):
    page.sub("Latency")
    found = views.latency(ctx.rows)
    peers = views.powers_of_two(found.peers)
    bars = [
        ("own shared memory", found.own, "own"),
        ("own, through the cluster window", next(iter(found.window.values()), None), "own"),
    ]
    bars += [(f"a peer's, cluster size {s}", v, "peer") for s, v in peers.items()]
    bars += [("L2 hit", found.l2, "memory"), ("global memory", found.hbm, "memory")]
    bars = [b for b in bars if b[1] is not None]
    if bars:
        caption = ["Cycles of one dependent load, by the location of the data. "]
        if 2 in peers:
            near = peers[2]
            caption.append(
                f"A peer's shared memory answers in {num(min(peers.values()))} to {num(max(peers.values()))}"
                " cycles; the source's 190 at size 2 is"
                f" {'confirmed' if abs(near - 190) <= 19 else 'not confirmed'} ({num(near)} here). "
            )
        if peers and found.l2:
            caption.append(
                f"The nearest memory shared by all SMs, the L2, takes {num(found.l2)} cycles"
                + (f" and global memory {num(found.hbm)}: " if found.hbm else ": ")
                + f"a hop between SMs costs {percent(min(peers.values()) / found.l2)} of an L2 hit. "
            )
        caption.append("Dotted: the source's figures.")
        marks = [(190, "source: DSMEM 190")] + ([(470, "source: memory above 470")] if found.hbm else [])
        page.figure(
            plots.bars(
                bars, "cycles", marks, colours={"own": plots.SKY, "peer": plots.BLUE, "memory": plots.ORANGE}
            ),
            join(caption),
            ["where", ">cycles"],
            [[n, num(v)] for n, v, _ in bars],
        )
    lacking = [
        f"latency_{k}" for k, v in (("smem", found.own), ("l2", found.l2), ("hbm", found.hbm)) if v is None
    ]
    lacking += [f"latency_size{s}" for s in views.SIZES[1:] if s not in found.peers]
    if lacking:
        page.missing("dsmem latency rows", lacking)
    if len(found.peers) > 1 and found.nearest and found.farthest:
        series = [
            ("farthest pair", sorted(found.farthest.items())),
            ("median pair", sorted(found.peers.items())),
            ("nearest pair", sorted(found.nearest.items())),
        ]
        low, high = min(found.nearest.values()), max(found.farthest.values())
        first, last = found.peers[min(found.peers)], found.peers[max(found.peers)]
        grows = last > 1.15 * first
        page.figure(
            plots.lines(series, "cluster size", "cycles", ticks=sorted(found.peers)),
            "The same for every cluster size, over all pairs of its SMs."
            f" {'The median grows' if grows else 'The median hardly grows'} with the cluster ({num(first)}"
            f" cycles at {min(found.peers)}, {num(last)} at {max(found.peers)}); it is the pair that matters:"
            f" {num(low)} to {num(high)} cycles, depending on the location of the two SMs. The source gives averages"
            " only, and says that small clusters are faster.",
            [">cluster size", ">nearest", ">median", ">farthest", ">own, through the window"],
            [
                [
                    str(s),
                    num(found.nearest.get(s)),
                    num(v),
                    num(found.farthest.get(s)),
                    num(found.window.get(s)),
                ]
                for s, v in found.peers.items()
            ],
        )


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def dsmem_matrix(page, ctx):
    groups = views.gpcs(ctx.rows)
    if not groups:
        page.missing("the latency of each pair of SMs", ["dsmem latency_matrix_size16"])
        return
    maps, table = [], []
    for i, (sms, matrix) in enumerate(groups, 1):
        values = [v for row in matrix for v in row if v is not None]
        maps.append((f"group {i}, mean {mean(values):.0f}", [str(sm) for sm in sms], matrix))
        table.append(
            [
                str(i),
                ", ".join(str(sm) for sm in sms),
                num(min(values)),
                fixed(mean(values), 1),
                num(max(values)),
            ]
        )
    page.figure(
        plots.heat(maps, "cycles", "SM that owns the data", "SM that reads"),
        matrix_caption(groups),
        [">group", "SMs", ">nearest pair", ">mean", ">farthest pair"],
        table,
    )


def matrix_caption(groups):
    pairs = {
        (a, b): v
        for sms, matrix in groups
        for a, row in zip(sms, matrix)
        for b, v in zip(sms, row)
        if v is not None
    }
    caption = (
        f"Latency of each pair of SMs, {len(pairs)} pairs: {num(min(pairs.values()))} to"
        f" {num(max(pairs.values()))} cycles. A cluster always lies within one GPC, so there is one map for each"
        " group of SMs that shared a cluster, and no other pair can be measured. "
    )
    both = mean(abs(v - pairs[b, a]) for (a, b), v in pairs.items() if (b, a) in pairs)
    if both is not None:
        caption += f"The two directions of a pair differ by {both:.1f} cycles on average. "
    near = mean(v for (a, b), v in pairs.items() if a // 2 == b // 2)
    far = mean(v for (a, b), v in pairs.items() if a // 2 != b // 2)
    if near and far:
        caption += (
            f"The two SMs of one TPC (2k and 2k + 1) are {'nearer' if near < far - 2 else 'no nearer'} to each"
            f" other than to the others: {near:.1f} against {far:.1f} cycles. "
        )
    return caption + "The source gives averages only."


def dsmem_bandwidth(page, ctx):
    page.sub("Bandwidth")
    found = views.bandwidth(ctx.rows)
    read = ctx.ceilings.gbps()
    unicast = {name: found[name] for _, name in views.UNICAST if name in found}
    if unicast:
        caption = ["Bytes that the SMs of all clusters that fit at once receive from each other, by cluster size. "]
        best, name, size = max((v, n, s) for n, d in unicast.items() for s, v in d.items())
        caption.append(f"The fastest method is {name}: {tbps(best)} TB/s at size {size}. ")
        caption += compare_loads(views.powers_of_two(found.get("16-byte loads", {})), read)
        if "16-byte loads" in found:
            slowest = min(found["16-byte loads"].items(), key=lambda pair: pair[1])
            caption.append(f"16-byte loads are slowest at size {slowest[0]}: {tbps(slowest[1])} TB/s. ")
        multicast = found.get("multicast")
        if multicast:
            caption.append(
                f"Multicast, not drawn, delivers {tbps(min(multicast.values()))} to"
                f" {tbps(max(multicast.values()))} TB/s: one read from the L2 serves all CTAs of the cluster. "
            )
        caption.append("The ring marks the source's value at size 16.")
        sizes = sorted({s for d in found.values() for s in d})
        fastest = {s: max((d[s] for d in unicast.values() if s in d), default=None) for s in sizes}
        page.figure(
            plots.lines(
                [(n, [(s, v / 1000) for s, v in sorted(d.items())]) for n, d in unicast.items()],
                "cluster size",
                "TB/s, whole GPU",
                ticks=sizes,
                references=[(read / 1000, f"read stream of memory {tbps(read)}")] if read else [],
                points=[(16, 2.90, "source: 2.90")],
            ),
            join(caption),
            [">cluster size"] + [f">{n}" for n in found] + [">best unicast, of the stream"],
            [
                [str(s)]
                + [tbps(d.get(s)) for d in found.values()]
                + [percent(fastest[s] / read) if fastest[s] and read else DASH]
                for s in sizes
            ],
        )
    bandwidth_per_sm(page, ctx)
    lacking = [
        f"{test}_size*{'_all' if test == 'load' else ''}" for test, name in views.WAYS if name not in found
    ]
    if lacking:
        page.missing("dsmem bandwidth rows", lacking)


def compare_loads(loads, read):
    """Sentences on whether loads behave as in the source."""
    steps = sorted(loads.items())
    out = []
    if len(steps) > 1:
        falls = all(b <= 1.02 * a for (_, a), (_, b) in zip(steps, steps[1:]))
        out.append(
            "From size 2 to 4, 8 and 16 the throughput of loads does not rise, as in the source. "
            if falls
            else "From size 2 to 4, 8 and 16 the throughput of loads does not always fall, unlike in the source. "
        )
    if 16 in loads and read:
        out.append(
            f"At 16 they reach {percent(loads[16] / read)} of this machine's read stream; in the source 98%, of a"
            " slower memory. "
        )
    return out


def bandwidth_per_sm(page, ctx):
    tests = [(test, name) for test, name in views.WAYS]
    tests.insert(1, ("load_one", "loads, one cluster alone"))
    found = [(name, views.member(views.dsmem(ctx.rows, test), "bytes_per_clk")) for test, name in tests]
    found = [(name, values) for name, values in found if values]
    if found:
        page.table(
            "The same per SM: bytes received per cycle of its own clock.",
            [">cluster size"] + [f">{name}" for name, _ in found],
            [
                [str(s)] + [fixed(values.get(s), 1) for _, values in found]
                for s in views.SIZES
                if any(s in values for _, values in found)
            ],
            "Size 1: own shared memory, through the cluster's window.",
        )


def dsmem_barriers(page, ctx):
    page.sub("Synchronisation")
    barrier, ring = views.dsmem(ctx.rows, "barrier"), views.dsmem(ctx.rows, "mbarrier")
    kinds = (
        ("cluster barrier", barrier, "cycles"),
        ("barrier with data", barrier, "exchange_cycles"),
        ("mbarrier hop", ring, "cycles"),
        ("st.async hop, with data", ring, "st_async_cycles"),
    )
    values = [(name, views.powers_of_two(views.member(records, key))) for name, records, key in kinds]
    values = [(name, v) for name, v in values if v]
    sizes = sorted({s for _, v in values for s in v if s > 1})
    lacking = [t for t, r in (("barrier_size*", barrier), ("mbarrier_size*", ring)) if not r]
    if lacking:
        page.missing("dsmem synchronisation rows", lacking)
    if not sizes:
        return
    caption = [
        "Cycles of one cluster barrier, and of passing a token to the next CTA of a ring. With data means a remote"
        " store before the barrier and a local load after it, and for the token an st.async with the token as"
        " payload, whose arrival is its own signal. "
    ]
    by_name, last = dict(values), sizes[-1]
    b, a = by_name.get("barrier with data", {}).get(last), by_name.get("st.async hop, with data", {}).get(
        last
    )
    if a and b:
        caption.append(
            f"At size {last} a value reaches its reader in {num(round(a))} cycles by st.async and in"
            f" {num(round(b))} through a"
            f" barrier{'; for this reason the collectives below use no barrier' if a < b else ''}. "
        )
    caption.append("The source does not measure these.")
    page.figure(
        plots.columns(
            [str(s) for s in sizes],
            [(n, [v.get(s) for s in sizes]) for n, v in values],
            "cluster size",
            "cycles",
        ),
        join(caption),
        [">cluster size"] + [f">{n}" for n, _ in values],
        [[str(s)] + [num(v.get(s)) for _, v in values] for s in sizes],
    )


def dsmem_active(page, ctx):
    page.sub("Active SMs")
    active = views.active_sms(ctx.rows)
    if not active:
        page.missing("dsmem rows", ["active_size*"])
        return
    sizes = sorted(active)
    seen = {s: a for s, (a, _) in active.items()}
    steps = sorted(views.powers_of_two(seen).items())
    falls = (
        len(steps) > 1
        and steps[-1][1] < steps[0][1]
        and all(b <= a for (_, a), (_, b) in zip(steps, steps[1:]))
    )
    worst = min(seen, key=lambda size: seen[size])
    caption = (
        f"SMs active at the same time when every CTA occupies a whole SM: {num(seen[sizes[0]])} at size {sizes[0]},"
        f" {num(seen[worst])} at size {worst}, {num(seen[sizes[-1]])} at size {sizes[-1]}. A cluster lies within one"
        " GPC, and different numbers of SMs are disabled in each GPC at manufacture: SMs that do not fill a cluster"
        f" stay idle. Over powers of two the number {'falls' if falls else 'does not always fall'}; in the source it"
        " falls. The exact numbers are specific to this chip, so kernels query the device."
    )
    page.figure(
        plots.columns(
            [str(s) for s in sizes],
            [("SMs", [seen[s] for s in sizes])],
            "cluster size",
            "active SMs",
            top=max(seen.values()) * 1.15,
        ),
        caption,
        [">cluster size", ">active SMs, counted", ">SMs by occupancy query"],
        [[str(s), num(a), num(q)] for s, (a, q) in active.items()],
    )
