# SPDX-License-Identifier: Apache-2.0
"""Section of the report: GPU-initiated RDMA."""

from base import plots
from claims import rdma_claims
from base.page import DASH, Html, code, fixed, num, size_name, us
from base.records import cards

PARTS = (("form_cycles", "form"), ("fence_cycles", "fence"), ("record_cycles", "record"), ("register_cycles", "register"))
KNOWN = {"fhbn", "transport", "nic", "rxe"}


def posts(page, rows):
    found = rows.find("fhbn", where=lambda r: r.case.startswith("post_") and r.ns)
    if not found:
        page.missing("the cost of a post", ["fhbn post_*"])
        return
    columns = ["case", "by", ">ns", ">cycles"] + [f">{name}" for _, name in PARTS]
    numbers = [
        [code(r.case), code(r.impl), num(round(r.ns)), num(r.number("median_cycles"))]
        + [num(r.number(key)) for key, _ in PARTS]
        for r in found
    ]
    caption = (
        "A post of 64 bytes with its signal by one lane, from the payload's stores to the store to the card's register:"
        " medians in SM cycles. Form: both work requests stored; fence: until the card can read all of it; record: the"
        " doorbell record; register: the doorbell, or 64 bytes of BlueFlame. The parts are measured separately and do"
        " not add up to the whole, in which they overlap."
    )
    apart = [r for r in found if all(r.number(key) is not None for key, _ in PARTS)]
    plot = None
    if apart:
        plot = plots.columns(
            [name for _, name in PARTS],
            [(r.case.removeprefix("post_64_bytes_signal_"), [r.number(key) for key, _ in PARTS]) for r in apart],
            "",
            "cycles",
        )
    page.figure(plot, caption, columns, numbers, of=cards(found))


def without_cpu(page, rows):
    found = []
    for memory in ("gpu", "host"):
        for size in (64, 4096, 65536):
            mine, other = rdma_claims.loopback(rows, memory, size)
            alone = rows.by_key.get(("fhbn", f"model_loopback_{size}_bytes_{memory}_memory", "cpu_to_cpu"))
            if rdma_claims.saved(mine, other):
                found.append((memory, size, mine, other, alone))
    if not found:
        page.missing("kernels against a path through the CPU, on the model card", ["fhbn model_loopback_*"])
        return
    page.table(
        "Half a round trip through the model card: kernels that post and poll, against the end of a kernel, a CPU that"
        " posts and polls, and the next launch. Both include the time of the model, which is not a network's latency;"
        " the last column is the time of the model between two CPU threads.",
        ["memory", ">bytes", ">fhbn, µs", ">conventional, µs", ">saved", ">model alone, µs"],
        [
            [
                "GPU" if memory == "gpu" else memory,
                size_name(size),
                us(a.ns),
                us(b.ns),
                f"{100 * (1 - a.ns / b.ns):.0f}%",
                us(alone.ns if alone else None),
            ]
            for memory, size, a, b, alone in found
        ],
        of=cards([mine for _, _, mine, _, _ in found]),
    )


def flags(page, rows):
    found = rows.find("fhbn", where=lambda r: r.case.startswith(("flag_round_trip", "copy_")) and r.ns)
    if found:
        page.table(
            "Round trip of a number from the CPU that a kernel polls and the kernel's answer in host memory; and the"
            " time of a payload moved by the copy engine alone, waited for by the CPU.",
            ["case", ">µs", ">p95"],
            [[code(r.case), us(r.ns), us(r.number("p95_ns"))] for r in found],
            of=cards(found),
        )


def microseconds(record):
    return record.ns / 1000


def curves(page, rows):
    for what, text, unit, value in (
        ("put_latency", "Put with signal, one way, by size: half a ping-pong between two kernels", "µs", microseconds),
        ("put_bandwidth", "Consecutive puts, by size", "GB/s", rdma_claims.gbps),
    ):
        found = rdma_claims.by_bytes(rows, what)
        where = "over NVLink between two GPUs"
        if not found:
            found = rdma_claims.by_bytes(rows, what, one_gpu=True)
            where = "with both ends on one GPU: the cost of the software, no figure of a link"
        if not found:
            page.missing(f"transports, {what.replace('_', ' ')}", [f"transport {what}_*"])
            continue
        series = [(impl, [(size, value(r)) for size, r in data if value(r)]) for impl, data in found.items()]
        series = [(name, data) for name, data in series if data]
        drawn = [(name, data) for name, data in series if len(data) > 1]
        alone = ", ".join(
            f"{name} {fixed(data[0][1], 2)} {unit} at {size_name(data[0][0])}" for name, data in series if len(data) == 1
        )
        page.figure(
            plots.lines(drawn, "bytes", unit, xtext=plots.tick_bytes) if drawn else None,
            f"{text}, {where}." + (f" Measured at one size only: {alone}." if alone else ""),
            ["by", ">size", f">{unit}"],
            [[code(name), size_name(x), fixed(y, 2)] for name, data in series for x, y in data],
            of=cards([r for data in found.values() for _, r in data]),
        )


def host_puts(page, rows):
    found = rows.find("transport", where=lambda r: r.case.startswith("host_put_latency_") and r.ns)
    if not found:
        return
    sizes = sorted({r.number("bytes") for r in found if r.number("bytes")})
    backends = list(dict.fromkeys(r.impl for r in found))
    table = {(r.impl, r.number("bytes")): r for r in found}
    on = sorted({r.get("gpu") for r in found if not r.on_gpu and r.get("gpu")})
    page.table(
        "Puts by the host in one process, one way, µs"
        + (f" ({', '.join(on)})" if on else "")
        + ". loop, verbs and fhbn run on a thread or on the model card: loopback, not a network.",
        ["back end"] + [f">{size_name(size)}" for size in sizes],
        [
            [code(b)] + [us(table[b, size].ns) if (b, size) in table else DASH for size in sizes]
            for b in backends
        ],
        of=cards([r for r in found if r.on_gpu]),
    )


def whole(value):
    return f"{value:,.0f}".replace(",", "\u202f")


def count(rows, op, case, text):
    """text filled in with the row's numbers, or None"""
    record = next(iter(rows.find(op, where=lambda r: r.case == case)), None)
    if not record:
        return None
    try:
        return text.format_map({k: whole(v) if record.number(k) is not None else v for k, v in record.raw.items()})
    except (KeyError, ValueError):
        return None


def mutants(rows):
    found = rows.find("nic", where=lambda r: r.case.startswith("mutants_") and r.number("planted"))
    if not found:
        return None
    caught, planted = (sum(int(r.number(k) or 0) for r in found) for k in ("caught", "planted"))
    return f"{caught} of {planted} caught, of {len(found)} kinds"


def on_gpu(rows):
    found = rows.find("fhbn", where=lambda r: r.on_gpu)
    return f"{len(found)} rows of kernels that posted to it" if found else None


def ladder(page, rows):
    tiers = (
        ("T0", "offsets and constants against mlx5dv.h and NVIDIA's headers, at compile time", "make", "in every build"),
        (
            "T1",
            "bytes against stock libmlx5, on the model card",
            "cairn check rdma.golden",
            count(rows, "nic", "golden", "{requests} requests, {differ} differ; {wraps} wraps of the index"),
        ),
        ("T2", "producers and consumers with a planted defect", "cairn check rdma.nic", mutants(rows)),
        (
            "T3",
            "behaviour of connections: the model against soft-RoCE of a stock Linux kernel, emulated",
            "cairn check rdma.rxe",
            count(
                rows,
                "rxe",
                "semantics",
                "{lines} lines, {listed_differences} differ as listed, {other_differences} otherwise; Linux {kernel}",
            ),
        ),
        (
            "T4",
            "stock programs on the model card",
            "cairn check rdma.nic_stock",
            count(rows, "nic", "stock_ib_write_bw", "ib_write_bw: {requests} requests, {rules} rules broken"),
        ),
        (
            "T5",
            "our kernels and NVIDIA's own device code post to the model card",
            "cairn check rdma.fhbn_gpu rdma.fhbn_bytes",
            on_gpu(rows),
        ),
        (
            "T6",
            "order of stores, traced; the model as an adversary",
            "cairn check rdma.fhbn_trace rdma.fhbn",
            "cases, not rows: make check",
        ),
        (
            "T7",
            "a real ConnectX",
            "cairn check rdma --device mlx5_0",
            Html("<b>has not been run</b>: no real card has been used"),
        ),
    )
    page.table(
        "The verification ladder: what replaces a real card, and how much of it was run.",
        ["tier", "check", "command", "result"],
        [[tier, what, code(how), counted or DASH] for tier, what, how, counted in tiers],
        of="",
    )
    lacking = [t[0] for t in tiers if t[3] is None]
    if lacking:
        page.missing("results of the ladder", lacking)


def section(page, ctx):
    page.section("GPU-initiated RDMA", "rdma")
    page.para(
        "A kernel writes the work requests of an mlx5 card and its doorbell itself (rdma/README.md). No card was"
        " available. The vendor's unchanged libmlx5 and NVIDIA's own device code run on a model of the card, which"
        " reports each rule that a producer breaks; the soft-RoCE of a Linux kernel is an independent reference for the"
        " behaviour of connections. A time through the model is never a network's latency."
    )
    posts(page, ctx.rows)
    without_cpu(page, ctx.rows)
    flags(page, ctx.rows)
    curves(page, ctx.rows)
    host_puts(page, ctx.rows)
    ladder(page, ctx.rows)
