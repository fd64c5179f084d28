# SPDX-License-Identifier: Apache-2.0
"""Model-attention disaggregation: claims LA-1 to LA-3 and LA-5 to LA-11 (LA-4 is in rdma_claims.py).

Rows: op disagg_sim (cairn disagg-plan --figures), which are simulated from recorded costs; gemm and attn_paged; slices;
disagg_fault, disagg, disagg_layer and disagg_order, of remote workers that ran.
"""

from base import disagg
from base.page import percent
from base.verdicts import Claim
from claims.rdma_claims import LAMINA

TWO_KINDS = "disagg_sim fig10_* with two kinds of GPUs"
SIMULATED = " All its figures are simulated."
ROWS, MODEL = 64, "llama3_70b"
LAYER = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))  # n and k of the products of a layer of the model
BELOW = 96  # rows, just below the source's batch of 100
H20_SMS = 78
KILLS, POINTS, GRAPHS, MODELS = 20, 6, 10000, 25


def products(rows):
    """{rows: record} of the largest product of a Llama-3-8B layer"""
    found = rows.find("gemm", impl="cuda", n=28672, k=4096, where=lambda r: r.dtype == "bf16" and r.ns)
    return {r.n["m"]: r for r in found}


def layer_ns(rows, m):
    """The time of all products of a layer of the source's model with m rows; None: some have no row."""
    found = [rows.find("gemm", impl="cuda", m=m, n=n, k=k, where=lambda r: r.dtype == "bf16" and r.ns) for n, k in LAYER]
    return sum(r[0].ns for r in found) if all(found) else None


def la_1(rows, ceilings):
    claim = Claim(
        "LA-1",
        "Outside attention, decoding is bound by memory bandwidth below batch 100, and uses less than 20% of the arithmetic",
        f"{LAMINA}, figure 2; H100, LLaMA3-70B",
        "The gate and up product of a Llama-3-8B layer, and all products of a layer of the source's model. The share of"
        " the arithmetic is that of this machine's fastest large product, not of a datasheet.",
    )
    found, top = products(rows), ceilings.tflops()
    one, many = found.get(1), found.get(ROWS)
    ratio = one and many and many.ns / one.ns
    claim.part(
        f"time for {ROWS} rows against one row",
        "flat",
        "at most 1.25 times",
        f"gemm m1_n28672_k4096_bf16, m{ROWS}_n28672_k4096_bf16",
        ratio and (f"{ratio:.2f} times", ratio <= 1.25, f"{ratio:.2f} times"),
    )
    share = many and top and many.number("tflops") and many.number("tflops") / top
    claim.part(
        f"share of the arithmetic at {ROWS} rows",
        "below 20%",
        "below 20%",
        f"gemm m{ROWS}_n28672_k4096_bf16, large products",
        share and (percent(share), share < 0.2, f"{percent(share)} at {ROWS} rows"),
    )
    times = {m: layer_ns(rows, m) for m in (1, BELOW, 1024)}
    ns, flops = times[BELOW], sum(2 * BELOW * n * k for n, k in LAYER)
    ratio = ns and times[1] and ns / times[1]
    used = ns and top and flops / ns / 1e3 / top
    beyond = ns and times[1024] and times[1024] / ns
    claim.part(
        f"the products of a layer of LLaMA3-70B, {BELOW} rows",
        "flat, below 20%",
        "at most 1.25 times one row's time, below 20%",
        f"gemm m*_n57344_k8192_bf16 and the layer's other products, 1, {BELOW} and 1024 rows",
        ratio
        and used
        and (
            f"{ratio:.2f} times one row's time, {percent(used)}" + (f"; 1024 rows {beyond:.1f} times it" if beyond else ""),
            ratio <= 1.25 and used < 0.2,
            f"{ratio:.2f} times, {percent(used)} with {BELOW} rows",
        ),
    )
    return claim


def la_2(rows, ceilings):
    claim = Claim(
        "LA-2",
        "Attention keeps above 70% of the memory bandwidth from batch 20 on",
        f"{LAMINA}, figure 3; H100 and H20, LLaMA3-70B",
        "Decoding over pages with 8 KV heads of 128, as in the source's model, in shares of the read stream. An H20 has"
        f" {H20_SMS} SMs and nearly the bandwidth of an H200.",
    )
    read = ceilings.gbps()
    found = rows.find(
        "attn_paged",
        "decode",
        impl="cuda",
        h2=8,
        where=lambda r: r.dtype == "bf16" and "d" not in r.n and r.n.get("b", 0) >= 20 and r.number("gbps"),
    )
    for what, some, cases in (
        ("batch 20 and more", [r for r in found if "sms" not in r.n], "b*_kv*_bf16"),
        (
            f"on {H20_SMS} SMs, as a stand-in for an H20",
            [r for r in found if r.n.get("sms") == H20_SMS],
            f"b*_kv*_sms{H20_SMS}_bf16",
        ),
    ):
        worst = min(some, key=lambda r: r.number("gbps"), default=None)
        share = worst and read and worst.number("gbps") / read
        claim.part(
            what,
            "above 70%",
            "above 70% in every row",
            f"attn_paged decode_h*_8_{cases}, stream read_*",
            share and (f"at least {percent(share)} ({len(some)} rows)", share > 0.7, f"{percent(share)}: {worst.case}"),
        )
    return claim


def la_3(rows):
    claim = Claim(
        "LA-3",
        "Up to batch 300, less than 30 GB/s keep the slowdown by the network below 20%",
        f"{LAMINA}, figure 4; H100 and H20, LLaMA3-70B",
        "Computed by the source's formula, (2 + 2/G) e d B L / (0.2 (M + A)), from recorded times of operations; and with"
        " 2 L latencies of the link taken from the time that is left." + SIMULATED,
    )
    for key, what in (("needed_gbps", "without latency"), ("needed_gbps_latency", "with the link's latency")):
        for keys in (1024, 4096, 8192):
            found = rows.find("disagg_sim", fig=4, kv=keys, where=lambda r: MODEL in r.case and r.n.get("b", 0) <= 300)
            impossible = [r for r in found if key in r.raw and r.raw[key] is None]
            most = max((r.number(key) for r in found if r.number(key) is not None), default=None)
            result = None
            if impossible:
                result = ("no bandwidth is enough", False, f"the latency alone exceeds 20%: {impossible[0].case}")
            elif most is not None:
                result = (f"{most:.1f} GB/s", most < 30, f"{most:.1f} GB/s at {keys} keys")
            claim.part(
                f"{keys} keys, {what}",
                "under 30 GB/s",
                "under 30 GB/s at every batch to 300",
                f"disagg_sim fig4_{MODEL}_b*_kv{keys}_*",
                result,
            )
    return claim


def wrong_tokens(rows, cuda):
    """The answers of tiny models with a wrong token, over their number of models; None: no rows."""
    found = rows.find("disagg_fault", "tokens", where=lambda r: r.on_gpu is cuda and r.number("tokens"))
    wrong = sum(int(r.need("wrong_answers")) for r in found)
    return (f"{wrong} in {len(found)} models", wrong == 0, f"{wrong} answers") if found else None


def la_5(rows):
    claim = Claim(
        "LA-5",
        "Attention over previous and over new tokens merges exactly",
        f"{LAMINA}, section 4.2",
        "Answers of tiny models whose previous keys are remote, against those of the model alone. A token is wrong if it differs"
        " although the logits decide by more than the rounding of two partial results.",
    )
    claim.part("answers with a wrong token, cpu", "0", "0", "disagg_fault tokens_*, cpu", wrong_tokens(rows, False))
    claim.part("answers with a wrong token, cuda", "0", "0", "disagg_fault tokens_cuda_*", wrong_tokens(rows, True))
    return claim


def la_6(rows):
    claim = Claim(
        "LA-6",
        "Overlap saves up to 13.2% (MHA, 65B) and 3.5% (GQA, 70B)",
        f"{LAMINA}, figure 14; H100, H20, 400 Gbit/s RoCE",
        "Decoding passes of some layers with Q sent first, against passes with the same operations that send Q when K and V have"
        " gone. Two GPUs, over NVLink that imitates 400 Gbit/s. The most of all batches.",
    )
    for what, shape, source in (("65B, multi-head attention", "llama_65b", 13.2), ("70B, grouped heads", "llama3_70b", 3.5)):
        found = rows.find(
            "disagg_order",
            impl="cuda",
            where=lambda r, s=shape: r.case.startswith(f"{s}_b") and r.get("link") == "paced" and r.number("saved_pct") is not None,
        )
        most = max(found, key=lambda r: r.number("saved_pct"), default=None)
        saved = most and most.number("saved_pct")
        claim.part(
            what,
            f"{source}%",
            "within half to twice",
            f"disagg_order {shape}_b*_paced",
            most
            and (
                f"{saved:.1f}% ({int(most.need('requests'))} requests); {most.need('saved_of_one_product_pct'):.1f}% of a pass"
                " with one product for Q, K and V",
                source / 2 <= saved <= 2 * source,
                f"{saved:.1f}%",
            ),
        )
    return claim


def la_7(rows):
    claim = Claim(
        "LA-7",
        "n attention operators give n + 1 slices with the smallest context",
        f"{LAMINA}, figure 6",
        "Slices of every published and tiny model, each cut with the certificate of a flow; random graphs of up to 11 operations,"
        " against all their cuts.",
    )
    models = rows.find("slices", "model")
    bad = [r.case for r in models if r.get("ok") is not True or r.need("slices") != r.need("attentions") + 1]
    claim.part(
        "models", "n + 1 slices, minimal", f"n + 1 slices, every certificate holds, at least {MODELS} models", "slices model_*",
        (f"{len(models) - len(bad)} of {len(models)} models", not bad, ", ".join(bad)) if len(models) >= MODELS else None,
    )  # fmt: skip
    graphs = next((r for r in rows.find("slices", "random")), None)
    judged = graphs and int(graphs.need("graphs"))
    claim.part(
        "random graphs", "minimal", f"all of at least {GRAPHS:,}", "slices random_graphs",
        graphs and (f"all of {judged:,}", graphs.get("ok") is True and judged >= GRAPHS, f"{judged:,} graphs"),
    )  # fmt: skip
    return claim


def la_8(rows):
    claim = Claim(
        "LA-8",
        "Rotational staggered pipelining has no conflict and no bubble if t_a = t_m / (n - 1)",
        f"{LAMINA}, figure 8",
        "n lanes on n - 1 replicas, without network, event by event in whole picoseconds." + SIMULATED,
    )
    found = {r.n["lanes"]: r for r in rows.find("disagg_sim", fig=8) if "lanes" in r.n}
    result = None
    if all(n in found for n in range(2, 9)):
        bad = [
            n for n, r in sorted(found.items()) if r.number("waited_ns") or r.number("idle_ns") or r.get("exact") is not True
        ]
        result = ("none for 2 to 8 lanes" if not bad else f"at {bad} lanes", not bad, f"conflicts or bubbles at {bad} lanes")
    claim.part("conflicts and bubbles, simulated", "none", "none for 2 to 8 lanes", "disagg_sim fig8_lanes2 to 8", result)
    lanes = {r.number("lanes"): r.number("busy_pct") for r in rows.find("disagg", "lanes", "cuda", "paced", impl="cuda")}
    busy = [lanes.get(n) for n in (2, 3)]
    claim.part(
        "two and three lanes on GPUs",
        "none",
        "the model's GPU is 95% busy",
        "disagg lanes_cuda_paced_2, _3 with busy_pct",
        (", ".join(f"{b:.0f}%" for b in busy), all(b >= 95 for b in busy), f"{min(busy):.0f}% busy") if all(busy) else None,
    )
    return claim


def two_kinds(record):
    """Whether the best disaggregated system of the row has two kinds of GPUs, as the source's has."""
    kinds = record.get("model_gpu"), record.get("attn_gpu")
    return kinds[0] != kinds[1] and record.number("model_gpu_gain_per_dollar") is not None


def la_9(rows):
    claim = Claim(
        "LA-9",
        "At equal cost 16.1% to 90.1% more throughput, with batches 2.39 times as large",
        f"{LAMINA}, figures 10 and 11; H100 and H20",
        "Public traces replayed on the best disaggregated system and on whole engines of the model workers' GPU with ideal"
        " tensor parallelism, both per dollar, from recorded times and stated prices; the two kinds of workers must differ." + SIMULATED,
    )
    found = rows.find("disagg_sim", fig=10, where=two_kinds)
    gains = [(r.number("model_gpu_gain_per_dollar"), r) for r in found]
    batches = [r.need("model_gpu_batch_gain_per_dollar") for r in found]
    low, at = min(gains, key=lambda g: g[0], default=(None, None))
    claim.part(
        "tokens per dollar, simulated",
        "1.161 to 1.901 times",
        "at least 1.161 times for every trace and model",
        TWO_KINDS,
        at
        and (
            f"{low:.2f} to {max(g for g, _ in gains):.2f} times ({len(gains)} rows)",
            low >= 1.161,
            f"{low:.2f} times: {at.case.removeprefix('fig10_')}",
        ),
    )
    mean = sum(batches) / len(batches) if batches else None
    claim.part(
        "requests per dollar, mean, simulated",
        "2.39 times",
        "at least 2 times",
        TWO_KINDS,
        mean and (f"{mean:.2f} times", mean >= 2, f"{mean:.2f} times"),
    )
    runs = disagg.runs(rows)
    worst = max((abs(simulated / measured - 1) for _, measured, simulated in runs), default=0)
    claim.part(
        "the simulation against runs", "-", f"within 10% at {POINTS} points", "disagg_sim run_*, disagg, disagg_layer",
        (f"within {percent(worst)} at {len(runs)} points", worst <= 0.1, f"{percent(worst)} off") if len(runs) >= POINTS else None,
    )  # fmt: skip
    return claim


def la_10(rows):
    claim = Claim(
        "LA-10",
        "A worker of either kind can fail without losing a request",
        f"{LAMINA}, section 5",
        "Workers are killed under load; the answers are compared with those of an undisturbed run.",
    )
    for role in ("attention", "model"):
        r = next((r for r in rows.find("disagg_fault", role, "killed") if r.need("kills") >= KILLS), None)
        bad = r and int(r.need("lost")) + int(r.need("changed"))
        claim.part(
            f"{KILLS} kills of {role} workers: answers lost or changed", "0", "0", f"disagg_fault {role}_killed",
            r and (f"{bad} of {int(r.need('answers'))}", bad == 0, f"{bad} answers"),
        )  # fmt: skip
    return claim


def la_11(rows):
    claim = Claim(
        "LA-11",
        "Dividing attention by heads balances the load of workers; dividing it by requests does not",
        f"{LAMINA}, figure 9",
        "Keys of the busiest of 4 workers over the mean, mean over batches of 64 requests of a trace." + SIMULATED,
    )
    found = rows.find("disagg_sim", fig=9)
    heads = max((r.need("heads") for r in found), default=None)
    turn = min((r.need("in_turn") for r in found), default=None)
    claim.part(
        "by heads", "balanced", "1 for every trace", "disagg_sim fig9_*",
        heads and (f"{heads:.2f}", heads == 1, f"{heads:.2f}"),
    )  # fmt: skip
    claim.part(
        "by requests in turn", "not balanced", "at least 1.1 for every trace", "disagg_sim fig9_*",
        turn and (f"at least {turn:.2f}", turn >= 1.1, f"{turn:.2f}"),
    )  # fmt: skip
    return claim


def claims(rows, ceilings):
    return [
        la_1(rows, ceilings),
        la_2(rows, ceilings),
        la_3(rows),
        la_5(rows),
        la_6(rows),
        la_7(rows),
        la_8(rows),
        la_9(rows),
        la_10(rows),
        la_11(rows),
    ]
