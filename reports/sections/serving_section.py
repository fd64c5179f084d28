# SPDX-License-Identifier: Apache-2.0
"""Section of the report: the serving engine; and the project's targets for it.

Rows: op throughput (serving/bench/throughput_test.c), first_token (first_token_test.c), serve (tools/serve_figures.py),
scheduler, scheduler_claims, kv_waste, prefix_trace and sharing_speed (tests of those names), kv_move_link
(fused/cache/kv_move_link_test.c), speculation (serving/bench/speculation_test.c).  claims/serving_claims.py has the claims
decided by these rows.
"""

from sections import timeline_drawing, tree_drawing
from base.page import DASH, code, fixed, num, us
from base.records import cards
from base.verdicts import target

KNOWN = {"throughput", "first_token", "serve", "scheduler", "scheduler_claims", "kv_waste", "prefix_trace", "sharing_speed",
         "kv_move_link", "speculation"}  # fmt: skip
PARTS = (("gemm", "products"), ("attn_paged", "attention"), ("rmsnorm", "norms"), ("silu_mul", "SiLU"), ("lm_head", "logits"),
         ("rope", "rotation"), ("kv_append", "append"), ("other", "the rest"))  # fmt: skip


def one(rows, op, *ends):
    """The row of this operation whose case ends with one of ends; a GPU row is preferred."""
    found = rows.find(op, where=lambda r: r.case.endswith(ends) and r.get("ok") is not False)
    return next(iter(sorted(found, key=lambda r: not r.on_gpu)), None)


def number(record, key):
    return record.number(key) if record else None


def judged(record, key, show, holds):
    value = number(record, key)
    return None if value is None else (show(value), holds(value))


def where(record):
    return "" if record is None or record.on_gpu else " (CPU table, embedded model)"


def reached(record, text):
    return record and (text(record) + where(record), record.get("reached") is True)


def share(record, key, places):
    value = record.number(key)
    return DASH if value is None else f"{value:.{places}f}%"


def ms(value):
    return f"{value * 1e-6:.1f} ms"


def targets(rows):
    full = one(rows, "throughput", "llama3_8b_1024_512")
    decode = one(rows, "throughput", "decode_256")
    return [
        target(
            "Llama-3-8B bf16, offline, 1024 tokens in, 512 out, all tokens",
            "50% of compute / 2P with the fastest product measured beside it (aim: 70%)",
            "throughput llama3_8b_1024_512",
            judged(full, "optimal_pct", lambda v: f"{v:.1f}%: {full.need('tokens_per_s'):,.0f} tokens/s", lambda v: v >= 50),
        ),
        target(
            "scheduler and sampler, batch 256, host time per step",
            "under 100 µs",
            "throughput decode_256",
            judged(decode, "host_us", lambda v: f"{v:.1f} µs; device idle {decode.need('idle_pct'):.2f}%", lambda v: v < 100),
        ),
        target(
            "server, Poisson arrivals at 80% of saturation: p99 of the time per token",
            "under twice the mean",
            "serve *_online80",
            reached(one(rows, "serve", "_online80"), lambda r: f"{r.need('p99_over_mean'):.2f} times"),
        ),
        target(
            "server, one request: time per token",
            "within 5% of the bare step",
            "serve *_batch1",
            reached(one(rows, "serve", "_batch1"), lambda r: f"{100 * (r.need('over_bare') - 1):+.1f}%"),
        ),
        target(
            "server, 8K of the prompt in the cache: time to first token",
            "under a tenth of that without",
            "serve *_prefix8k",
            reached(one(rows, "serve", "_prefix8k", "_prefix"), lambda r: f"{100 * r.need('hit_over_miss'):.1f}%"),
        ),
        target(
            "server, 1000 idle connections, 256 streams, 20 stalled readers",
            "no token lost, constant memory",
            "serve *_connections",
            reached(
                one(rows, "serve", "_connections"),
                lambda r: f"{r.need('answered'):,.0f} complete answers in {r.need('seconds'):.0f} s, front-end process"
                f" {r.need('front_grown_bytes') / 1e6:+.1f} MB",
            ),
        ),
        target(
            "server, worker killed 20 times under load",
            "every request answered or failed cleanly, recovery within the load time, no leak",
            "serve *_kill9",
            reached(one(rows, "serve", "_kill9"), lambda r: f"{r.need('sent'):,.0f} requests"),
        ),
    ]


def throughput(page, rows):
    found = [r for r in rows.find("throughput") if r.number("tokens_per_s")]
    if not found:
        page.missing("offline throughput", ["throughput llama3_8b_1024_512"])
        return
    page.table(
        "All requests are present from the start, with 1024 tokens in and 512 out, and the batch is full. tokens/s counts"
        " the tokens of prompts and answers. The share is of compute / 2P, where compute is the fastest product"
        " measured beside it.",
        ["case", ">rows per step", ">tokens/s", ">new", ">share", ">step, ms", ">host, µs", ">device idle"],
        [
            [
                code(r.case),
                num(r.number("rows")),
                num(r.number("tokens_per_s")),
                num(r.number("new_per_s")),
                share(r, "optimal_pct", 1),
                fixed(r.number("step_ms"), 2),
                num(r.number("host_us")),
                share(r, "idle_pct", 3),
            ]
            for r in found
        ],
        of=cards(found),
    )
    cases = [r.case for r in found]
    table = [[(c, one(rows, "throughput", f"{c}_{part}")) for c in cases] for part, _ in PARTS]
    if any(r for line in table for _, r in line):
        page.table(
            "Where a step's time goes: events around each operation in steps run separately, ms, all layers.",
            ["operation"] + [f">{c}" for c in cases],
            [[name] + [fixed(number(r, "ms"), 2) for _, r in line] for (_, name), line in zip(PARTS, table)],
            of=cards(found),
        )


def server(page, rows):
    found = [r for r in rows.find("serve") if r.number("ttft_p50_ns") or r.number("tpot_mean_ns")]
    if not found:
        page.missing("cairn serve under load", ["serve *: tools/serve_figures.py"])
        return
    keys = ("ttft_p50_ns", "ttft_p99_ns", "tpot_mean_ns", "tpot_p99_ns", "itl_p50_ns", "itl_p99_ns")
    page.table(
        "cairn serve, measured by cairn bench serve over sockets. Times in ms, counted from the scheduled arrival of a request.",
        ["case", "by", ">output tokens/s", ">TTFT p50", ">p99", ">TPOT mean", ">p99", ">ITL p50", ">p99"],
        [
            [code(r.case), code(r.impl), num(r.number("output_tokens_per_s"))]
            + [fixed(r.number(k) * 1e-6, 2) if r.number(k) is not None else "" for k in keys]
            for r in found
        ],
        of=cards(found),
    )


def host(page, rows):
    found = [r for r in rows.find("scheduler") if r.number("median_ns")]
    if found:
        page.table(
            "Time of a step of the scheduler alone (plan and report), µs.",
            ["case", ">batch", ">rows", ">median", ">p99"],
            [
                [code(r.case), num(r.number("batch")), num(r.number("rows"))]
                + [fixed(r.need(k) / 1e3, 1) for k in ("median_ns", "p99_ns")]
                for r in found
            ],
            of=cards(found),
        )
    found = [r for r in rows.find("kv_waste") if r.number("sharegpt_waste") is not None]
    if found:
        page.table(
            "Share of the KV cache that holds no token (simulated: lengths drawn like those of ShareGPT and Alpaca, AT-11),"
            " and the unused share if space for the longest answer were reserved.",
            ["page", ">ShareGPT", ">Alpaca", ">reserved, ShareGPT", ">Alpaca"],
            [
                [r.case.removeprefix("waste_page")]
                + [
                    f"{100 * r.need(k):.1f}%"
                    for k in ("sharegpt_waste", "alpaca_waste", "sharegpt_reserved", "alpaca_reserved")
                ]
                for r in found
            ],
            of="",
        )


WAYS = {"copy": "one contiguous copy", "pieces": "one copy for each page, layer and side (K or V)",
        "staged": "one copy, then moved into place on the device"}  # fmt: skip


def link(page, rows):
    """Transfers of cache pages to host memory and back."""
    found = [r for r in rows.find("kv_move_link") if r.ns and r.number("bytes")]
    if not found:
        page.missing("transfers between the cache and host memory", ["kv_move_link copy_engine_*, host_*, pages_*"])
        return

    def way(record):
        ctas = record.n.get("ctas")
        return WAYS.get(record.impl) or "one launch" + (f", {ctas} CTA{'s' * (ctas > 1)}" if ctas else "")

    page.table(
        "Pages of the cache moved between the device and pinned host memory; times include the host's calls. The"
        " contiguous copy gives the speed of the link. A launch moves the pages by loads and stores of the device.",
        ["case", "by", ">µs", ">GB/s"],
        [[code(r.case), way(r), us(r.ns), fixed(r.number("bytes") / r.ns, 1)] for r in found],
        of=cards(found),
    )


DRAFTS = (
    ("one row, plain", "plain_ms", None, DASH),
    ("8 rows verified", "rows8_ms", "rows8", "at most 1.15 steps"),
    ("16 rows verified", "rows16_ms", "rows16", "at most 1.35 steps"),
    ("16 rows verified, a tree", "tree16_ms", "tree16", DASH),
    ("a token, 3.08 a step forced", "forced_ms", "forced", "at least 2.0× as fast"),
    ("a token, no draft right", "none_right_ms", "none_right", "at least 0.95× as fast"),
)


def drafts(page, rows):
    """What drafted rows cost and bring."""
    found = rows.find("speculation", where=lambda r: r.number("plain_ms"))
    if not found:
        page.missing("the cost of drafted rows", ["speculation llama3_8b_*"])
        return
    page.table(
        "Speculative decoding with one request of Llama-3-8B. A step that verifies 7 or 15 drafts has 8 or 16 rows; its time is also"
        " given in plain steps of one row. The last two rows give the time per token, and the gain over plain decoding, if so many"
        " drafts are accepted that a step yields 3.08 tokens, and if none is. The targets apply to a prompt of 1024 tokens.",
        ["case", "what", ">ms", ">in plain steps, or gain", "target"],
        [
            [code(r.case), what, f"{r.need(time):.3f}", f"{r.need(key):.2f}" if key else DASH, goal]
            for r in found
            for what, time, key, goal in DRAFTS
            if r.number(time)  # older rows have no trees
        ],
        of=cards(found),
    )


def section(page, ctx):
    page.section("Serving", "serving")
    page.para(
        "The engine that uses the kernels (serving/README.md): a scheduler that fills every step with the same number of"
        " rows, a paged cache with a prefix tree, and the server cairn serve, which consists of two processes."
    )
    throughput(page, ctx.rows)
    timeline_drawing.figure(page, ctx.rows)
    server(page, ctx.rows)
    host(page, ctx.rows)
    link(page, ctx.rows)
    drafts(page, ctx.rows)
    tree_drawing.figure(page, ctx.rows)
