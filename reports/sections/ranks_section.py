# SPDX-License-Identifier: Apache-2.0
"""Section of the report: several GPUs of one host (claims AT-8 to AT-10)."""

from base import disagg, plots, ranks
from base.page import DASH, code, percent, size_name, us

NEEDS = ["comm n*_*", "tp_decode", "tp_prefill", "cp_prefill", "ring_attention", "pp_prefill"]
IDEAL = "ideal"


def shape_name(shape):
    return {"llama3_8b": "Llama-3-8B", "llama3_70b": "Llama-3-70B"}.get(shape, shape)


def gpus(n):
    return f"{n} GPU{'s' * (n != 1)}"


def scaling_figure(page, series, caption, columns, table):
    """series: [(name, [(ranks, speed-up)])], with the ideal line beside."""
    ticks = sorted({n for _, data in series for n, _ in data})
    if len(ticks) < 2:
        page.table(caption, columns, table)
        return
    ideal = (IDEAL, [(n, n) for n in ticks])
    page.figure(
        plots.lines([*series, ideal], "GPUs", "times as fast as one", xtext=str_of, ticks=ticks), caption, columns, table
    )


def str_of(value, _=None):
    return f"{value:g}"


def crossing(name, n, pairs):
    """A sentence on the sizes at which NCCL is faster."""
    slower = [size for size, ours, other in pairs if ours > other]
    if not slower:
        return f"{name} over {gpus(n)} is never slower than NCCL's. "
    return f"NCCL's {name} over {gpus(n)} is faster at {', '.join(size_name(s) for s in slower)}. "


def collectives(page, rows):
    found = ranks.collectives(rows)
    if not found:
        page.missing("rows of collectives between GPUs", ["comm all_reduce_norm_*", "comm n4_*"])
        return
    page.sub("Collectives")
    groups, table, text = [], [], ""
    for (op, n), by_impl in sorted(found.items(), key=lambda item: (ranks.COLLECTIVES.index(item[0][0]), item[0][1])):
        series = [
            (name, [(size, ns / 1000) for size, ns in sorted(by_impl[impl].items())])
            for impl, name in (("cuda", "Cairn"), ("nccl", "NCCL"))
            if impl in by_impl
        ]
        groups.append((f"{op}, {gpus(n)}", series))
        pairs = ranks.both(by_impl)
        text += crossing(op, n, pairs) if pairs else ""
        other = {size: ns for size, _, ns in pairs}
        for size, ns in sorted(by_impl.get("cuda", {}).items()):
            table.append(
                [
                    op,
                    str(n),
                    size_name(size),
                    us(ns),
                    us(other.get(size)),
                    f"{other[size] / ns:.2f}×" if size in other else DASH,
                ]
            )
    page.figure(
        plots.panels(groups, "bytes of a rank", "µs", per_row=3),
        "Time of one call in a CUDA graph of calls that follow each other, both axes logarithmic. all_reduce_norm sums the"
        " ranks' rows, adds the residual and normalises; it is compared with ncclAllReduce followed by Cairn's rmsnorm."
        " all_to_all, and send_recv, in which each rank sends to the next one of a ring, are compared with groups of"
        f" ncclSend and ncclRecv. {text}",
        ["operation", ">GPUs", ">bytes of a rank", ">µs", ">NCCL µs", ">gain"],
        table,
    )


def times_table(found, name, text):
    """Rows of a table of {key: {ranks: time}}: one for each key and number of ranks."""
    out = []
    for key, times in sorted(found.items()):
        for n, time in sorted(times.items()):
            gain = times[1] / time if 1 in times else None
            out.append(
                [name(key), str(n), text(time), f"{gain:.2f}×" if gain else DASH, percent(gain / n) if gain else DASH]
            )
    return out


def tensors(page, rows):
    steps, prompts, offline = ranks.steps(rows), ranks.prompts(rows), ranks.offline(rows)
    if not steps and not prompts and not offline:
        return
    page.sub("Tensor parallelism")

    def step_name(key):
        return f"{shape_name(key[0])}, batch {key[1]}, {key[2]} keys"

    if steps:
        scaling_figure(
            page,
            [(step_name(key), ranks.speedups(times)) for key, times in sorted(steps.items()) if len(ranks.speedups(times)) > 1],
            "A decoding step with random weights, in graphs as served. A share is the speed-up divided by the GPUs. A shape"
            " that does not fit one GPU has no speed-up.",
            ["step", ">GPUs", ">ms", ">speed-up", ">of ideal"],
            times_table(steps, step_name, lambda ns: f"{ns / 1e6:.3f}"),
        )
    if prompts:
        scaling_figure(
            page,
            [(shape_name(key), ranks.speedups(times)) for key, times in sorted(prompts.items()) if len(ranks.speedups(times)) > 1],
            "Time to the first token of a prompt of 8192 tokens in one pass.",
            ["shape", ">GPUs", ">ms", ">speed-up", ">of ideal"],
            times_table(prompts, shape_name, lambda ms: f"{ms:.1f}"),
        )
    if offline:
        page.table(
            "Throughput of Llama-3-8B with 256 requests at once, prompts of 512 tokens and answers of 256. The last column is the"
            " share of what as many GPUs would reach with a replica of the model each: N times the rate of one GPU.",
            [">GPUs", ">tokens/s", ">of replicas"],
            [
                [str(n), f"{rate:,.0f}", percent(rate / n / offline[1]) if 1 in offline else DASH]
                for n, rate in sorted(offline.items())
            ],
        )


def long_prompts(page, rows):
    found = ranks.long_prompts(rows)
    if not found:
        return

    def name(key):
        return f"{key[0]}K, {ranks.WAYS[key[1]]}"

    scaling_figure(
        page,
        [(name(key), ranks.speedups(times)) for key, times in sorted(found.items()) if ranks.speedups(times)],
        "Time to the first token of long prompts with Llama-3.1-8B, in passes of at most 8192 rows of a rank: ranks share the rows, and"
        " exchange heads or send keys around a ring; or they share the weights.",
        ["tokens and way", ">GPUs", ">ms", ">speed-up", ">of ideal"],
        times_table(found, name, lambda ms: f"{ms:.1f}"),
    )


def rings(page, rows):
    found = ranks.rings(rows)
    if not found:
        return
    table = [
        [
            str(n),
            f"{tokens}K",
            f"{r.need('one_ms'):.1f}",
            f"{r.need('zigzag_ms'):.1f}",
            percent(ranks.ideal_share(r)),
            f"{r.need('contiguous_ms'):.1f}",
            f"{r.need('contiguous_ms') / r.need('zigzag_ms'):.2f}×",
        ]
        for n, by_tokens in sorted(found.items())
        for tokens, r in sorted(by_tokens.items())
    ]
    series = [
        (gpus(n), [(tokens, 100 * ranks.ideal_share(r)) for tokens, r in sorted(by_tokens.items())])
        for n, by_tokens in sorted(found.items())
    ]
    page.figure(
        plots.lines(series, "thousands of tokens", "% of ideal", xtext=str_of, references=[(100, IDEAL)]),
        "Ring attention with zig-zag pieces, Llama-3.2-1B, a prompt in one pass. The ideal time is that of one GPU divided by the"
        " number of GPUs; the figure shows it in percent of the measured time. For attention alone, zig-zag pieces can be at most"
        " 2 - 1/N times as fast as contiguous ones.",
        [">GPUs", ">tokens", ">one GPU, ms", ">zig-zag, ms", ">of ideal", ">contiguous, ms", ">gain"],
        table,
    )


def latents(page, rows):
    found = {}
    for r in rows.find("cp_decode", where=lambda r: r.ns):
        found.setdefault(int(r.need("ranks")), {})[r.words[-1]] = r.ns
    if found:
        page.table(
            "A decoding step of DeepSeek-V2-Lite, 64 sequences of 16K tokens: every rank reads all latents; ranks share out the"
            " pages; each also holds only its share.",
            [">GPUs", ">all, ms", ">pages, ms", ">stripes, ms", ">gain of pages"],
            [
                [
                    str(n),
                    *(f"{ways[w] / 1e6:.3f}" if w in ways else DASH for w in ("whole", "pages", "stripes")),
                    f"{ways['whole'] / ways['pages']:.2f}×" if {"whole", "pages"} <= ways.keys() else DASH,
                ]
                for n, ways in sorted(found.items())
            ],
        )


def context(page, rows):
    if any(rows.find(op) for op in ("cp_prefill", "ring_attention", "cp_decode")):
        page.sub("Context parallelism")
    for part in (long_prompts, rings, latents):
        part(page, rows)


def pipelines(page, rows):
    found = ranks.pipelines(rows)
    if not found:
        return
    page.sub("Pipelines")
    counted = {
        (ranks.kilo(r), int(r.need("stages"))): r.need("speedup")
        for r in rows.find("pp_prefill", where=lambda r: r.get("simulated") and r.n.get("chunk") == 1024)
    }
    table = []
    for tokens, times in sorted(found.items()):
        for n, (ms, chunk) in sorted(times.items()):
            gain = times[1][0] / ms if 1 in times else None
            model = counted.get((tokens, n))
            table.append(
                [
                    f"{tokens}K",
                    str(n),
                    str(chunk),
                    f"{ms:.0f}",
                    f"{gain:.2f}×" if gain else DASH,
                    percent(gain / n) if gain else DASH,
                    f"{model:.2f}×" if model else DASH,
                ]
            )
    scaling_figure(
        page,
        [
            (f"{tokens}K tokens", ranks.speedups({n: ms for n, (ms, _) in times.items()}))
            for tokens, times in sorted(found.items())
            if 1 in times
        ],
        "Time to the first token of Llama-3-8B whose layers are divided into stages, by the fastest measured first chunk."
        " Simulated: multiplications counted, chunks of 1024 rows, without communication.",
        [">tokens", ">GPUs", ">first chunk", ">ms", ">speed-up", ">of ideal", ">simulated"],
        table,
    )


def simulated(page, rows):
    found = rows.find("simulated_ranks", where=lambda r: r.number("simulated_ms"))
    if found:
        page.sub("Simulated and measured")
        page.table(
            "A prompt of 32K tokens, Llama-3.2-1B, one pass: measured, and simulated from the times of one GPU in the same run.",
            ["way", ">GPUs", ">measured, ms", ">simulated, ms", ">error"],
            [
                [
                    next((text for way, text in ranks.WAYS.items() if way in r.words), r.case),
                    str(int(r.need("ranks"))),
                    f"{r.number('first_ms'):.1f}" if r.number("first_ms") else "not run",
                    f"{r.need('simulated_ms'):.1f}",
                    f"{r.number('error_pct'):+.1f}%" if r.number("error_pct") is not None else DASH,
                ]
                for r in sorted(found, key=lambda r: (r.need("ranks"), r.case))
            ],
        )


def attention_workers(page, rows):
    layers, lanes = rows.find("disagg_layer"), rows.find("disagg", where=lambda r: r.number("one_lane"))
    paced = rows.find("disagg", where=lambda r: r.number("paced_us"))
    order, pulls = rows.find("disagg_order"), rows.find("disagg_pull")
    killed = [r for op in disagg.KILLED for r in rows.find(op, "killed")]
    slices = [r for r in rows.find("slices", "model") if "tiny" not in r.words]
    if not any((layers, lanes, paced, order, pulls, killed, slices)):
        return
    page.sub("Attention on another GPU")
    if layers:
        page.table(
            "A decoding step whose attention runs on a second GPU, against one on a single GPU: whole, and with the same split.",
            ["case", "link", ">whole, µs", ">split, µs", ">two GPUs, µs", ">added for each layer, µs"],
            [
                [
                    r.case,
                    r.get("link", DASH),
                    f"{r.need('whole_us'):.0f}",
                    f"{r.need('local_us'):.0f}",
                    f"{r.need('remote_us'):.0f}",
                    f"{r.need('added_to_whole_layer_us'):+.1f}",
                ]
                for r in layers
            ],
        )
    if lanes:
        page.table(
            "Tokens per second with one and with two batches under way between the GPUs. Two engines are two GPUs without the split.",
            ["case", "link", ">one batch", ">one of twice the size", ">two batches", ">two over one", ">over two engines"],
            [
                [
                    r.case,
                    r.get("link", DASH),
                    f"{r.need('one_lane'):,.0f}",
                    f"{r.need('one_lane_of_all'):,.0f}",
                    f"{r.need('two_lanes'):,.0f}",
                    f"{r.need('two_over_one'):.2f}×",
                    f"{r.need('over_two_engines'):.2f}×",
                ]
                for r in lanes
            ],
        )
    if paced:
        page.table(
            "Time in which every lane makes one pass, over NVLink at full speed, and over NVLink paced like a slower link: a signal"
            " becomes visible only when that link would have delivered it. Hidden is the share of the slower link's transfer time"
            " that does not make the pass longer (must: 70% with two lanes, 85% with three, at 400 Gbit/s).",
            [">lanes", ">requests of each", ">MB/s", ">latency, µs", ">one way, µs", ">NVLink, µs", ">paced, µs", ">hidden"],
            [
                [
                    f"{r.need('lanes'):.0f}",
                    f"{r.need('requests_a_lane'):.0f}",
                    f"{r.need('mb_per_s'):,.0f}",
                    f"{r.need('latency_us'):g}",
                    f"{r.need('t_n_us'):.1f}",
                    f"{r.need('free_us'):,.0f}",
                    f"{r.need('paced_us'):,.0f}",
                    f"{r.need('hidden_pct'):.0f}%",
                ]
                for r in sorted(paced, key=lambda r: r.need("lanes"))
            ],
        )
    if order:
        orders(page, order)
    if pulls:
        pulled(page, pulls)
    if killed:
        kills(page, killed)
    if slices:
        cuts(page, slices)


def orders(page, order):
    page.table(
        "Decoding passes of some layers of a model with an attention worker on the next GPU: Q is sent before K and V are computed (Q"
        " first), the same operations with Q sent after K and V (together), and one product for Q, K and V. Saved is"
        " 1 - first / together.",
        ["case", "link", ">layers", ">Q first, µs", ">together, µs", ">one product, µs", ">saved"],
        [
            [
                r.case,
                r.get("link", DASH),
                f"{r.need('layers'):.0f}",
                *(f"{r.need(key):,.0f}" for key in ("first_us", "together_us", "one_product_us")),
                f"{r.need('saved_pct'):.1f}%",
            ]
            for r in sorted(order, key=lambda r: (r.case.partition("_b")[0], r.get("link", ""), r.need("requests")))
        ],
    )


def pulled(page, pulls):
    page.table(
        "Prompts that a prefill worker on the next GPU computes, whose keys and values the server pulls. First, the time to the first"
        " token if the server computes the prompt itself, and if it pulls it (must: at most 10% more). Then the 99th percentile of"
        " the time between tokens of the other requests: without prompts, while prompts are pulled one after another (must: at most"
        " 5% more), and while as many prompts arrive of which all but the last page is cached.",
        ["link", ">tokens", ">computed here, ms", ">pulled, ms", ">more", ">others", ">alone, ms", ">beside pulls, ms", ">more",
         ">beside cached prompts, ms"],
        [
            [
                r.get("link", DASH),
                f"{r.need('prompt_tokens'):,.0f}",
                f"{r.need('first_ms'):.0f}",
                f"{r.need('pulled_ms'):.0f}",
                f"{r.need('exposed_pct'):+.0f}%",
                f"{r.need('others'):.0f}",
                f"{r.need('alone_p99_ms'):.2f}",
                f"{r.need('beside_p99_ms'):.2f}",
                f"{r.need('slower_pct'):+.0f}%",
                f"{r.number('cached_p99_ms'):.2f}" if r.number("cached_p99_ms") else DASH,
            ]
            for r in pulls
        ],
    )


def kills(page, killed):
    page.table(
        "Workers of a tiny model killed while they answer, cpu table: answers that were lost, and those with a token or a"
        " log-probability that differs from the undisturbed run (must: none in 20 kills of each kind).",
        ["killed", ">kills", ">noticed", ">answers", ">lost", ">changed"],
        [
            [
                "the lead" if r.words[0] == "lead" else f"{r.words[0]} workers",
                *(f"{r.need(key):.0f}" for key in ("kills", "recoveries", "answers", "lost", "changed")),
            ]
            for r in killed
        ],
        of="",
    )


def cuts(page, slices):
    page.table(
        "Models cut at each attention (cairn convert-slices): attention operators and slices, bytes that a cut saves for a token,"
        " and the time of all cuts on a host (must: 100 ms for 80 layers).",
        ["model", ">attention operators", ">slices", ">bytes a cut", ">ms"],
        [
            [
                code(r.case.removeprefix("model_")),
                *(f"{r.need(key):,.0f}" for key in ("attentions", "slices", "saved_bytes")),
                f"{r.need('create_ms'):.2f}",
            ]
            for r in sorted(slices, key=lambda r: -r.need("attentions"))
        ],
        of="",
    )


def section(page, ctx):
    page.section("Several GPUs", "ranks")
    if not any(op in ranks.KNOWN | disagg.COUNTED for op in ctx.rows.ops()):
        page.missing("rows of several GPUs", NEEDS)
        return
    page.para(
        "GPUs of one host, connected by NVLink. A speed-up is against one GPU; the ideal one is the number of GPUs. Weights are"
        " random."
    )
    for part in (collectives, tensors, context, pipelines, simulated, attention_workers):
        part(page, ctx.rows)
