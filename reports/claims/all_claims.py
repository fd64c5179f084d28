# SPDX-License-Identifier: Apache-2.0
"""Verdicts, computed from records by the rules stated here and printed beside them.

A claim is a list of parts.  A part holds, does not hold, or lacks its records.  The claim is
    reproduced            if every part holds,
    refuted               if no part holds, 'refuted in part' if some do; the failing parts are the reasons,
    not measured          if records are missing and no part with records fails.
A target is a figure that the project set itself; it is reached, not reached, or not measured.
"""

from base import views
from claims import attention_claims, flashinfer_claims, fused_claims, lamina_claims, nanoflow_claims, ranks_claims, rdma_claims, serving_claims
from sections import serving_section
from base.page import DASH, fixed, num, percent, us
from base.verdicts import PAPER, Claim, for_h200, target


def by_size(found, text):
    """4.09, 3.01 at 2 / 4"""
    return ", ".join(text(v) for _, v in found) + " at " + " / ".join(str(s) for s, _ in found)


def rises(found, slack, text):
    """The places where a value exceeds slack times the previous one: ['3.54 at 8 after 3.01 at 4']"""
    return [
        f"{text(b)} at {t} after {text(a)} at {s}"
        for (s, a), (t, b) in zip(found, found[1:])
        if b > slack * a
    ]


def tb(gbps):
    return f"{gbps / 1000:.2f}"


def cf_1(rows):
    claim = Claim(
        "CF-1",
        "DSMEM latency is about 190 cycles at cluster size 2, global memory's above 470",
        f"{PAPER}, figure 5 left; H100",
        "One thread follows a chain of dependent loads through the shared memory of its peers, and a chain through"
        " memory that no cache holds. The unit is SM clock cycles per load.",
    )
    found = views.latency(rows)
    near, far, l2, worst = found.peers.get(2), found.hbm, found.l2, max(found.peers.values(), default=None)
    claim.part(
        "DSMEM load, cluster size 2",
        "190 cycles",
        "within 10% of 190",
        "dsmem latency_size2",
        near and (f"{num(near)} cycles", abs(near - 190) <= 19, f"{num(near)} cycles"),
    )
    claim.part(
        "global memory",
        "above 470 cycles",
        "above 470",
        "dsmem latency_hbm",
        far and (f"{num(far)} cycles", far > 470, f"{num(far)} cycles"),
    )
    claim.part(
        "all cluster sizes, slowest",
        "below global memory",
        "below an L2 hit",
        "dsmem latency_size*, latency_l2",
        worst
        and l2
        and (f"{num(worst)} cycles (L2: {num(l2)})", worst < l2, f"{num(worst)}, an L2 hit {num(l2)}"),
    )
    return claim


def cf_2(rows, ceilings):
    claim = Claim(
        "CF-2",
        "DSMEM bandwidth falls as clusters grow; at 16 it is a little under that of global memory",
        f"{PAPER}, figure 5; H100",
        "All clusters that fit at once read their peers' shared memory with 16-byte loads: the bytes of all SMs over"
        " the time from the first start to the last end, compared with the read stream of this machine.",
    )
    loads, read = views.powers_of_two(views.bandwidth(rows).get("16-byte loads", {})), ceilings.gbps()
    steps, two, last = sorted(loads.items()), loads.get(2), loads.get(16)
    up = rises(steps, 1.02, tb)
    claim.part(
        "falls with cluster size",
        "falls",
        "none of the sizes 2, 4, 8, 16 is more than 2% above the previous one",
        "dsmem load_size*_all",
        len(steps) > 1 and (f"{by_size(steps, tb)} TB/s", not up, "it rises: " + ", ".join(up)) or None,
    )
    claim.part(
        "cluster 16 against 2",
        "lower",
        "lower",
        "dsmem load_size2_all, load_size16_all",
        two and last and (f"{percent(last / two)} of size 2", last < two, "it is not lower"),
    )
    claim.part(
        "cluster 16 against global memory",
        "98% (2.90 of 2.96 TB/s)",
        "90% to 100% of it",
        "dsmem load_size16_all, stream read_*",
        last
        and read
        and (
            f"{percent(last / read)} ({tb(last)} of {tb(read)} TB/s)",
            0.9 <= last / read <= 1,
            (
                f"{percent(last / read)}: DSMEM reaches {last / 2900:.2f} times the source's figure, "
                f"this machine's memory {read / 2960:.2f} times"
            ),
        ),
    )
    return claim


def cf_3(rows):
    claim = Claim(
        "CF-3",
        "Fewer SMs are active as clusters grow",
        f"{PAPER}, figure 5 right; H100",
        "Every CTA occupies a whole SM. cudaOccupancyMaxActiveClusters predicts the number of active clusters, and a"
        " kernel whose CTAs wait until all that fit have started counts the SMs active at the same time.",
    )
    active = views.active_sms(rows)
    seen = sorted((s, a) for s, (a, _) in views.powers_of_two(active).items())
    up = rises(seen, 1, num)
    claim.part(
        "active SMs, counted",
        "falls",
        "over 1, 2, 4, 8, 16: never more than at the previous size, fewer at the last",
        "dsmem active_size*",
        len(seen) > 1
        and (
            by_size(seen, num),
            not up and seen[-1][1] < seen[0][1],
            "it rises: " + ", ".join(up) if up else "it does not fall",
        )
        or None,
    )
    asked = {s: (a, q) for s, (a, q) in active.items() if q is not None}
    differ = [f"{num(a)} seen, {num(q)} granted at {s}" for s, (a, q) in asked.items() if a != q]
    claim.part(
        "count against occupancy query",
        DASH,
        "equal at every size",
        "dsmem active_size*: asked_sms",
        asked
        and ("; ".join(differ) or f"equal at {len(asked)} sizes", not differ, "; ".join(differ))
        or None,
    )
    return claim


FAR_FASTER = 1.5


def faster(found):
    """Whether every on-chip row is at least FAR_FASTER times as fast as the off-chip row of its size."""
    if not found:
        return None
    ratios = [(off.cycles / on.cycles, size, num_bytes) for size, num_bytes, on, off in found]
    short = [f"{r:.2f} at cluster {size}, {num_bytes} B" for r, size, num_bytes in ratios if r < FAR_FASTER]
    more = f" and {len(short) - 4} more" if len(short) > 4 else ""
    return (
        f"{min(ratios)[0]:.1f} to {max(ratios)[0]:.1f} times ({len(ratios)} sizes)",
        not short,
        f"less at {len(short)} of {len(ratios)} sizes: {', '.join(short[:4])}{more}",
    )


def cf_4(rows):
    claim = Claim(
        "CF-4",
        "On-chip ClusterReduce and ClusterGather are far faster than off-chip at every size",
        f"{PAPER}, table 1; H100",
        "The same all-reduce and all-gather inside one kernel, through DSMEM and through global memory; cycles from"
        " input in shared memory to result in shared memory, averaged over rounds.",
    )
    for kind in ("reduce", "gather"):
        found = views.collectives(rows, kind)
        for algo, name in ((None, "fastest on chip"), ("tree", "the source's tree")):
            claim.part(
                f"{kind}, {name}",
                "far faster",
                f"at least {FAR_FASTER} times, at every size and length",
                f"cluster_{kind} size*_len*_{algo or '*'} and _offchip",
                faster(views.pairs([c for c in found if algo is None or c.algo in (algo, "offchip")])),
            )
    return claim


def cf_5(rows):
    claim = Claim(
        "CF-5",
        "Traffic: reduce = size N log2 N, gather = size N (N - 1)",
        f"{PAPER}, section 3.1",
        "The bytes that the schedule of each algorithm sends to other CTAs of the cluster are counted send by send by"
        " the code that the kernels run, and by the hardware's counter of bytes received through DSMEM over a kernel"
        " with a known number of collectives.",
    )
    for kind, formula in (("reduce", "size N log2 N"), ("gather", "size N (N - 1)")):
        found = [
            (c, views.paper_traffic(kind, c.num_bytes, c.size))
            for c in views.collectives(rows, kind)
            if c.algo == "tree" and c.traffic is not None and c.size > 1
        ]
        off = [
            f"{num(c.traffic)} B at cluster {c.size}, {c.num_bytes} B (formula: {num(wanted)})"
            for c, wanted in found
            if c.traffic != wanted
        ]
        claim.part(
            f"{kind}, tree",
            formula,
            "equal to the byte",
            f"cluster_{kind} size*_len*_tree",
            found
            and (f"{len(found) - len(off)} of {len(found)} sizes equal", not off, "; ".join(off[:3]))
            or None,
        )
        by_counter(claim, rows, kind, formula)
    return claim


BENCH_ROUNDS = {True: 258, False: 66}  # rounds of a bench kernel, by whether len <= 1024 (primitives/cluster/cluster_test.h)


def by_counter(claim, rows, kind, formula):
    """Adds the part judged by hardware counters, from a bench row of the tree run under a profiler."""
    record = next(iter(rows.find("traffic", "tree", impl="cuda", where=lambda r: kind in r.words)), None)
    sent = record and record.number("dsmem_counted_bytes")
    result = None
    if sent:
        size, num_bytes = record.n["size"], 4 * record.n["len"]
        one, wanted = sent / BENCH_ROUNDS[record.n["len"] <= 1024], views.paper_traffic(kind, num_bytes, size)
        text = f"{num(round(one))} B at cluster {size}, {num_bytes} B ({one / wanted:.2f} times)"
        result = (text, abs(one / wanted - 1) <= 0.1, text)
    claim.part(
        f"{kind}, tree, by the hardware's counter",
        formula,
        "within 10% of it",
        f"traffic cluster_{kind}_size*_len*_tree",
        result,
    )


def claims(rows, ceilings):
    return [
        cf_1(rows),
        cf_2(rows, ceilings),
        cf_3(rows),
        cf_4(rows),
        cf_5(rows),
        *fused_claims.claims(rows),
        *lamina_claims.claims(rows, ceilings),
        *rdma_claims.claims(rows),
        *flashinfer_claims.claims(rows),
        *attention_claims.claims(rows),
        *nanoflow_claims.claims(rows, ceilings),
        *ranks_claims.claims(rows),
        *serving_claims.claims(rows),
    ]


# ---------------------------------------------------------------- the project's targets


def all_reduce_256(rows):
    found = [c for c in views.collectives(rows, "reduce") if c.num_bytes == 256 and c.on_chip and c.cycles]
    for size, limit in ((2, 700), (4, 800), (8, 950), (16, 1300)):
        best = min((c for c in found if c.size == size), key=lambda c: c.cycles, default=None)
        yield target(
            f"all-reduce of 256 B, cluster {size}",
            f"under {num(limit)} cycles",
            f"cluster_reduce size{size}_len64_f32_sum_*",
            best and (f"{num(round(best.cycles))} cycles ({views.LABEL[best.algo]})", best.cycles < limit),
        )


def all_reduce_16k(rows, loaded):
    """The time of the collective over the time to move its bytes at the measured DSMEM bandwidth of one cluster."""
    found = [
        c
        for c in views.collectives(rows, "reduce", loaded=loaded)
        if (c.num_bytes, c.size) == (16384, 4) and c.on_chip and c.cycles and c.traffic
    ]
    per_cycle = views.cluster_bytes_per_cycle(rows, 4, alone=not loaded)
    result = None
    if found and per_cycle:
        best = min(found, key=lambda c: c.cycles)
        ideal = best.traffic / per_cycle
        result = (
            (
                f"{best.cycles / ideal:.2f} times ({views.LABEL[best.algo]}: {num(round(best.cycles))} cycles"
                f" for {num(best.traffic)} B, {num(round(ideal))} at {per_cycle:.0f} B per cycle)"
            ),
            best.cycles <= 1.5 * ideal,
        )
    return target(
        f"all-reduce of 16 KiB, cluster 4, {'all clusters at once' if loaded else 'one cluster alone'}",
        "at most 1.5 times the time to move its bytes",
        f"cluster_reduce size4_len4096_f32_sum_*{'_all' if loaded else ''}, dsmem bandwidth at 4",
        result,
    )


# (target, op, numbers of the case)
PEERED = (
    ("rmsnorm, 128 x 4096", "rmsnorm", {"rows": 128, "dim": 4096}),
    ("silu-mul, 128 x (2 x 14336)", "silu_mul", {"rows": 128, "dim": 14336}),
    ("rope, 128 tokens, 32/8 heads", "rope", {"rows": 128, "heads": 32}),
    ("sampling, top-k and top-p, batch 1", "sample", {"rows": 1, "vocab": 128256, "topk": 50, "topp": 90}),
    ("sampling, top-k and top-p, batch 64", "sample", {"rows": 64, "vocab": 128256, "topk": 50, "topp": 90}),
    ("sampling, top-k and top-p, batch 256", "sample", {"rows": 256, "vocab": 128256, "topk": 50, "topp": 90}),
)


def no_slower(rows):
    for what, op, numbers in PEERED:
        best = rows.fastest(op, impl="cuda", where=lambda r: "residual" not in r.words, **numbers)
        peer = views.fastest_peer(views.table_of(rows, best)) if best else None
        yield target(
            what,
            "no slower than the fastest peer of the same run",
            f"{op} {'_'.join(f'{k}{v}' for k, v in numbers.items())}* by cuda and flashinfer",
            peer and (f"{us(best.ns)} µs, {views.peer_name(peer)} {us(peer.ns)} µs", best.ns <= peer.ns),
        )


def bandwidth(what, limit, needs, record):
    value = record.number("gbps") if record else None
    return target(
        what, f"{fixed(limit / 1000, 1)} TB/s", needs, value and (f"{tb(value)} TB/s", value >= limit)
    )


def generate(rows, ceilings):
    best = rows.fastest("generate", "8b", impl="cuda", llama=3, b=1)
    share = views.stream_share(best, ceilings) if best else None
    return target(
        "generate, Llama-3-8B shape, batch 1",
        "70% of the read stream",
        "generate llama3_8b_b1_*",
        share and (f"{percent(share)} ({best.ns / 1e6:.2f} ms per token)", share >= 0.7),
    )


def targets(rows, ceilings):
    decode = rows.fastest(
        "attn_paged",
        "decode",
        impl="cuda",
        where=lambda r: "d" not in r.n and r.dtype != "fp8",
        h=32,
        h2=8,
        b=64,
        kv=4096,
    )
    return [
        *all_reduce_256(rows),
        all_reduce_16k(rows, False),
        all_reduce_16k(rows, True),
        *for_h200(
            [
                bandwidth("read stream", 4500, "stream read_*", ceilings.read),
                bandwidth(
                    "paged attention, decode, 32/8 heads, batch 64, 4096 keys",
                    3000,
                    "attn_paged decode_h32_8_b64_kv4096_*",
                    decode,
                ),
            ],
            rows,
        ),
        *no_slower(rows),
        generate(rows, ceilings),
        *fused_claims.targets(rows, ceilings),
        *rdma_claims.targets(rows),
        *serving_section.targets(rows),
    ]
