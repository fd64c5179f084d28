# SPDX-License-Identifier: Apache-2.0
"""Section of the report: decoding with attention on GPUs of its own (claims LA-3, LA-8, LA-9, LA-11), simulated."""

from base import disagg

OP = "disagg_sim"
NEEDS = ["cairn disagg-plan --trace FILE --prices FILE --shape llama3-70b --json RECORDING --figures --ways"]


def simulated(rows):
    """The rows that were simulated from the costs of a recording's card; they are valid for that card alone."""
    return [r for r in rows if r.op == OP]


def gpus(record, key):
    return str(record.get(key, "?"))


def system(record):
    if not record.number("b"):
        return f"{record.need('a'):.0f} {gpus(record, 'model_gpu')}, one engine"
    return (
        f"{record.need('a'):.0f} {gpus(record, 'model_gpu')} + {record.need('b'):.0f} {gpus(record, 'attn_gpu')},"
        f" {record.need('lanes'):.0f} lanes"
    )


def needed(page, rows):
    found = [r for r in rows.find(OP, fig=4) if {"b", "kv"} <= r.n.keys()]
    contexts = sorted({r.n["kv"] for r in found})
    lines = {}
    for r in found:
        pair = f"{gpus(r, 'model_gpu')}, {gpus(r, 'attn_gpu')}"
        lines.setdefault((pair, r.n["b"]), {})[r.n["kv"]] = r.number("needed_gbps")
    page.table(
        "Simulated: GB/s between model and attention workers that keep the network at 20% of the computation, by batch and"
        " keys of each request, one GPU of each kind (Lamina's figure 4, claim LA-3). Without the link's latency.",
        ["GPUs", ">batch", *(f">{k} keys" for k in contexts)],
        [
            [pair, str(b), *("-" if v.get(k) is None else f"{v[k]:.1f}" for k in contexts)]
            for (pair, b), v in sorted(lines.items())
        ],
        of="",
    )


def compared(page, rows):
    page.table(
        "Simulated: the best disaggregated system for a trace and a model, in tokens per dollar against whole engines with"
        " ideal tensor parallelism: of any kind; of the model workers' kind (Lamina's figure 10, claim LA-9); in tokens per"
        " second against the same GPUs as whole engines.",
        ["trace and model", "best", ">tokens/s", ">batch", ">p99 TBT, ms", ">any engine", ">model GPU", ">same GPUs"],
        [
            [
                r.case.removeprefix("fig10_"),
                system(r),
                f"{r.need('tokens_per_s'):,.0f}",
                f"{r.need('batch'):.0f}",
                f"{r.need('p99_tbt_ms'):.1f}",
                f"{r.need('gain_per_dollar'):.2f}",
                f"{r.number('model_gpu_gain_per_dollar') or 0:.2f}",
                f"{r.need('same_gpus_gain'):.2f}" if r.need("same_gpus_gain") else "none runs",
            ]
            for r in rows.find(OP, fig=10)
        ],
        of="",
    )


def ways(page, rows):
    found = sorted(rows.find(OP, fig=11), key=lambda r: -r.need("tokens_per_dollar"))
    if not found:
        return
    page.table(
        "Simulated: ways to use GPUs, best first (Lamina's figure 11).",
        ["system", ">tokens/s", ">batch", ">TBT, ms", ">$ per hour", ">tokens per $"],
        [
            [
                system(r),
                f"{r.need('tokens_per_s'):,.0f}",
                f"{r.need('batch'):.0f}",
                f"{r.need('tbt_ms'):.1f}",
                f"{r.need('dollars_per_hour'):.2f}",
                f"{r.need('tokens_per_dollar'):,.0f}",
            ]
            for r in found
        ],
        of="",
    )


def checked(page, rows):
    lines = [
        [
            f"{requests} requests" + (f", {lanes} lanes" if lanes > 1 else ""),
            "one GPU" if not workers else "model GPU and attention GPU",
            f"{measured:,.0f}",
            f"{simulated:,.0f}",
            f"{100 * (simulated / measured - 1):+.1f}%",
        ]
        for (workers, lanes, requests), measured, simulated in disagg.runs(rows)
    ]
    if lines:
        page.table(
            "Simulated against measured: a pass of every lane of Llama-3-8B, 1024 keys a request (must: within 10%).",
            ["requests of a lane", "on", ">measured, µs", ">simulated, µs", ">error"],
            lines,
            of="",
        )


def section(page, ctx):
    page.section("Attention on GPUs of its own, simulated", "disagg")
    if not ctx.rows.find(OP):
        page.missing("simulation of disaggregated decoding", NEEDS)
        return
    page.para(
        "Nothing in this section was run, except where a table says measured. Lanes, replicas, link and attention workers are"
        " simulated event by event from recorded times of operations; prices and a GPU that could not be measured are stated in"
        " the file of prices."
    )
    checked(page, ctx.rows)
    needed(page, ctx.rows)
    compared(page, ctx.rows)
    ways(page, ctx.rows)
