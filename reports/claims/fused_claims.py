# SPDX-License-Identifier: Apache-2.0
"""The fused operations: claims CF-6 to CF-13, and the project's targets."""

from base import views
from base.page import DASH, num, percent, us
from base.verdicts import PAPER, Claim, for_h200, target

LENGTHS = (1024, 2048, 4096, 8192, 16384)
CHAIN = "the best chain of separate kernels in the same run (table unfused)"


def ns(rows, op, case, impl="cuda"):
    record = rows.by_key.get((op, case, impl))
    return record.ns if record else None


def gain(rows, op, case, over="unfused", ours="cuda"):
    """Speed of our table relative to another one, or None."""
    mine, other = ns(rows, op, case, ours), ns(rows, op, case, over)
    return other / mine if mine and other else None


def ratio(rows, case, other):
    """Time of another case of cluster_attn relative to this one, or None."""
    mine, its = ns(rows, "cluster_attn", case), ns(rows, "cluster_attn", other)
    return its / mine if mine and its else None


def there(pairs):
    return [(k, v) for k, v in pairs if v]


def mean(found):
    product = 1
    for _, v in found:
        product *= v
    return product ** (1 / len(found))


def size(keys):
    return f"{keys / 1024:g}K"


def listed(found, text="{:.2f}"):
    return ", ".join(f"{text.format(v)} at {k}" for k, v in found)


def by_length(rows, op, shape):
    return there((size(k), gain(rows, op, f"{shape}_kv{k}")) for k in LENGTHS)


def most(rows, op, case, over="unfused"):
    """Speed of a pure read of the row's bytes relative to another table: an upper bound for the gain of any kernel that
    reads all of them.  None if records are missing."""
    record, other = rows.by_key.get((op, case, "cuda")), ns(rows, op, case, over)
    read = record and views.pure_read_ns(rows, record.number("bytes"))
    return other / read if read and other else None


def step_over(rows, case):
    """The list of operations that a whole step is compared with: the engine's if there are rows of it, else unfused."""
    return "cuda:unfused" if ns(rows, "decode_step", case, "cuda:unfused") else "unfused"


def step_gain(rows, case):
    return gain(rows, "decode_step", case, step_over(rows, case))


def step_most(rows, case):
    return most(rows, "decode_step", case, step_over(rows, case))


def by_cluster(rows, case):
    """[(cluster size, ns)] of case_c1 .. case_c16"""
    return there((c, ns(rows, "cluster_attn", f"{case}_c{c}")) for c in views.SIZES)


def offchip(rows, flow):
    case = f"llama2_7b_b1_kv4096_{flow}"
    return there(
        (c, ratio(rows, f"{case}_c{c}", f"{case}_c{c}_offchip")) for c in views.SIZES[1:]
    )


def head_over_token(rows):
    return there(
        (size(k), ratio(rows, f"llama2_7b_b1_kv{k}_token_c4", f"llama2_7b_b1_kv{k}_head_c4"))
        for k in LENGTHS
    )


def decode_shares(rows, new_tokens=256):
    """[(case, share)]: share of the latency of new_tokens tokens that comes after the first token."""
    out = []
    for r in rows.find("generate", impl="cuda", b=1):
        first = r.number("first_token_ns")
        if not first or not r.ns:
            continue
        measured = r.number("decode_ns") if r.number("new_tokens") == new_tokens else None
        decode = measured or (new_tokens - 1) * r.ns
        out.append((r.case, decode / (first + decode)))
    return out


def judged_mean(found, least, limits=()):
    """limits: the gain of a pure read of the same bytes"""
    if not found:
        return None
    m = mean(found)
    why = f"mean {m:.2f}: {listed(found)}"
    if limits:
        why += f"; a pure read of the same bytes would gain {listed(limits)}"
        if mean(limits) < least:
            why += f", so a gain of {least:g} over this chain is out of reach of any kernel"
    return f"mean {m:.2f} ({listed(found)})", m >= least, why


def cf_6(rows):
    claim = Claim(
        "CF-6",
        "The fused module is 1.61 to 1.85 times as fast as unfused kernels (Llama-2-7B), 1.35 to 1.66 (MLA)",
        f"{PAPER}, figure 9; H100, against SGLang, vLLM and TensorRT-LLM",
        f"The whole attention block at batch 1 against {CHAIN}; geometric mean over lengths.",
    )
    for what, op, shape, source, least in (
        ("Llama-2-7B", "cluster_attn", "llama2_7b_b1", "1.61 to 1.85", 1.61),
        ("DeepSeek-V2-Lite", "cluster_mla", "dsv2lite_b1", "1.35 to 1.66", 1.35),
    ):
        claim.part(
            what,
            source,
            f"mean at least {least}",
            f"{op} {shape}_kv* by cuda and unfused",
            judged_mean(
                by_length(rows, op, shape),
                least,
                there((size(k), most(rows, op, f"{shape}_kv{k}")) for k in LENGTHS),
            ),
        )
    return claim


def cf_7(rows):
    claim = Claim(
        "CF-7",
        "Time per output token is shorter by factors of 1.39 to 1.43 (Llama-2-7B) and 1.34 to 1.51 (DeepSeek-V2-Lite)",
        f"{PAPER}, figure 8; H100, against SGLang, vLLM and TensorRT-LLM",
        "The whole step in the fused form that the engine chooses, against the step as a list of the unfused"
        " operations in a CUDA graph. The serving systems of the source are not run here.",
    )
    for what, shape, source, least in (
        ("Llama-2-7B", "llama2_7b_b1", "1.39 to 1.43", 1.39),
        ("DeepSeek-V2-Lite", "dsv2lite_b1", "1.34 to 1.51", 1.34),
    ):
        claim.part(
            what,
            source,
            f"mean at least {least}",
            f"decode_step {shape}_kv* by cuda, and cuda:unfused or unfused",
            judged_mean(
                there((size(k), step_gain(rows, f"{shape}_kv{k}")) for k in LENGTHS),
                least,
                there((size(k), step_most(rows, f"{shape}_kv{k}")) for k in LENGTHS),
            ),
        )
    return claim


def cf_8(rows):
    claim = Claim(
        "CF-8",
        "The best cluster size is 4 at 32 and 64 heads, 2 at 128 heads; 8 and 16 are slower",
        f"{PAPER}, figure 11; H100",
        "SPLIT_TOKEN at 4096 keys, hidden size 4096, by number of heads and cluster size. The reduction in the source's"
        " public code is correct for size 4 only (it runs N - 2 rounds with strides 1 to N - 2): at other sizes that"
        " code does not compute the paper's algorithm. Here the result is verified at every size.",
    )
    for heads, wanted in ((32, 4), (64, 4), (128, 2)):
        found = by_cluster(rows, f"heads{heads}_b1_kv4096_token")
        best = min(found, key=lambda f: f[1])[0] if found else None
        text = ", ".join(f"{us(t)} µs at {c}" for c, t in found)
        claim.part(
            f"{heads} heads",
            f"{wanted} is best",
            f"{wanted} is the fastest of 1, 2, 4, 8, 16",
            f"cluster_attn heads{heads}_b1_kv4096_token_c*",
            (f"{best} is best: {text}", best == wanted, f"{best} is best: {text}")
            if len(found) == len(views.SIZES)
            else None,
        )
    return claim


def model_bytes(flow, n, heads=32, head_dim=128, keys=4096, element=2):
    """Bytes through DSMEM by all clusters in a call at batch 1 with one query head per KV head, by the formulas of
    fused/cluster_attn/cluster_attn_schedule.h."""
    gather = 3 * head_dim * element * (n - 1)
    reduce = (n - 1) * ((head_dim + 2) * 4 + head_dim * element) if flow == "token" else 2 * 4 * keys * (n - 1)
    return heads * (gather + reduce)


MODULES = (
    ("cluster_attn", "llama2_7b_b1_kv1024"),
    ("cluster_attn", "llama3_8b_b1_kv1024"),
    ("cluster_mla", "dsv2lite_b1_kv1024"),
)
STEPS = (("decode_step", "vocab_4000_three_layers"),)
LAYERS = (("decode_step", "layer_llama3_8b_b1_kv1024"),)


def counted(rows, cases, key):
    """[(case, value of unfused, value of cuda)] from the hardware counters (reports/traffic.py)."""
    out = []
    for op, case in cases:
        found = [rows.by_key.get(("traffic", f"{op}_{case}", impl)) for impl in ("unfused", "cuda")]
        values = [r and r.number(key) for r in found]
        if None not in values:
            out.append((case, *values))
    return out


def counted_part(claim, rows, what, cases, key, source, rule, test):
    found = counted(rows, cases, key)
    text = ", ".join(f"{num(int(a))} by unfused, {num(int(b))} fused in {case}" for case, a, b in found)
    claim.part(
        what,
        source,
        rule,
        "traffic " + ", ".join(f"{op}_{case}" for op, case in cases) + " by cuda and unfused",
        (text, all(test(a, b) for _, a, b in found), text) if len(found) == len(cases) else None,
    )


def cf_9(rows):
    claim = Claim(
        "CF-9",
        "Intermediate memory traffic drops, and launch overhead by nearly ten times",
        f"{PAPER}, figure 12; H100",
        "One call under Nsight Compute: kernels launched, and bytes that kernels store to global memory (inputs of the"
        " next kernel or phase, results and new keys; data that CTAs of one kernel exchange through the L2 counts,"
        " too). The norms, rotary embedding and residual sums of the chain are already fused into few kernels. Bytes"
        " through DSMEM are counted by the schedule.",
    )
    for what, cases in (("a step of three layers", STEPS), ("a step of one layer", LAYERS), ("the module", MODULES)):
        counted_part(
            claim,
            rows,
            f"launches of {what}, counted",
            cases,
            "launches",
            "about 10 times fewer",
            "at least 8 times fewer",
            lambda a, b: a >= 8 * b,
        )
    counted_part(
        claim,
        rows,
        "intermediate bytes, counted",
        MODULES + LAYERS,
        "store_bytes",
        "fewer",
        "fewer in every case",
        lambda a, b: b < a,
    )
    found = []
    for flow in ("token", "head"):
        for n in views.SIZES[1:]:
            r = rows.by_key.get(("cluster_attn", f"llama2_7b_b1_kv4096_{flow}_c{n}", "cuda"))
            if r and r.number("dsmem_model_bytes") is not None:
                found.append((f"{flow} {n}", r.number("dsmem_model_bytes"), model_bytes(flow, n)))
    off = [f"{k}: {a:g} B, formula {b:g}" for k, a, b in found if a != b]
    claim.part(
        "intermediate bytes through DSMEM, by the schedule",
        DASH,
        "equal to the derived formulas",
        "dsmem_model_bytes of cluster_attn llama2_7b_b1_kv4096_{token,head}_c*",
        (f"{len(found) - len(off)} of {len(found)} equal", not off, "; ".join(off)) if found else None,
    )
    return claim


def cf_10(rows):
    claim = Claim(
        "CF-10",
        "Without DSMEM the time per token rises by up to 33%",
        f"{PAPER}, figure 13; H100",
        "Time of the module with its exchanges through global memory relative to exchanges through DSMEM, 4096 keys."
        " The module is only a part of the step: if a step loses 33%, its module loses more.",
    )
    for flow, name in (("token", "SPLIT_TOKEN"), ("head", "SPLIT_HEAD")):
        found = offchip(rows, flow)
        claim.part(
            f"{name}, every size",
            "slower off chip",
            "slower off chip at every size",
            f"cluster_attn llama2_7b_b1_kv4096_{flow}_c* and _offchip",
            (listed(found), all(v > 1 for _, v in found), listed(found)) if found else None,
        )
    four = dict(offchip(rows, "token")).get(4)
    claim.part(
        "SPLIT_TOKEN, cluster 4",
        "up to 33% of a step",
        "at least 33% of the module",
        "cluster_attn llama2_7b_b1_kv4096_token_c4 and _offchip",
        four and (f"{(four - 1) * 100:+.0f}%", four >= 1.33, f"{(four - 1) * 100:+.0f}%"),
    )
    return claim


BATCH_16 = (
    ("cluster_attn", "llama2_7b", 1024),
    ("cluster_attn", "llama2_7b", 4096),
    ("cluster_mla", "dsv2lite", 4096),
)


def cf_11(rows):
    claim = Claim(
        "CF-11",
        "At batch 16 the gain shrinks to 1.07 to 1.20 times",
        f"{PAPER}, figures 17 to 19; H100",
        f"The fused module at batch 16 against {CHAIN}, compared with the gain at batch 1.",
    )
    for op, shape, keys in BATCH_16:
        many, one = (gain(rows, op, f"{shape}_b{b}_kv{keys}") for b in (16, 1))
        text = many and one and f"{many:.2f} (batch 1: {one:.2f})"
        claim.part(
            f"{shape}, {size(keys)}",
            "1.07 to 1.20",
            "at least 1.07, and less than at batch 1",
            f"{op} {shape}_b16_kv{keys}, _b1_kv{keys} by cuda and unfused",
            text and (text, 1.07 <= many < one, text),
        )
    return claim


def cf_12(rows):
    claim = Claim(
        "CF-12",
        "SplitHead is close to SplitToken at short lengths, and slower at long ones",
        f"{PAPER}, figures 16 and 20; H100",
        "Time of SPLIT_HEAD relative to SPLIT_TOKEN at cluster size 4.",
    )
    found = dict(head_over_token(rows))
    for keys, source, rule, test in (
        ("1K", "close", "within 10%", lambda v: abs(v - 1) <= 0.1),
        ("16K", "slower", "more than 10% slower", lambda v: v > 1.1),
    ):
        v = found.get(keys)
        claim.part(
            f"{keys} keys",
            source,
            rule,
            f"cluster_attn llama2_7b_b1_kv{int(keys[:-1]) * 1024}_head_c4, _token_c4",
            v and (f"{v:.2f}", test(v), f"{v:.2f}"),
        )
    return claim


def cf_13(rows):
    claim = Claim(
        "CF-13",
        "Decoding takes over 95% of the latency of 256 generated tokens",
        f"{PAPER}, figure 2; H100",
        "For a request in the engine, the time from the first token to the 256th relative to the time from the prompt"
        " to the 256th; if a row has fewer tokens, 255 times the median time per token. A prompt of DeepSeek-V2-Lite"
        " goes through the decode step token by token, which its first token has to wait for.",
    )
    found = [(case, 100 * v) for case, v in decode_shares(rows)]
    text = listed(found, "{:.1f}%")
    claim.part(
        "every prompt measured",
        "over 95%",
        "over 95% in every row",
        "generate *_b1_kv*: first_token_ns, decode_ns",
        (text, all(v > 95 for _, v in found), text) if found else None,
    )
    return claim


def claims(rows):
    return [f(rows) for f in (cf_6, cf_7, cf_8, cf_9, cf_10, cf_11, cf_12, cf_13)]


# ---------------------------------------------------------------- the project's targets

MODULE_US = ((1024, 42, 38), (2048, 46, 42), (4096, 55, 50), (8192, 72, 65), (16384, 107, 96))
TPOT_MS = (("llama2_7b", 3.6, 3.3), ("llama3_8b", 4.0, 3.65), ("llama32_1b", 0.7, 0.6))


def time_target(what, needs, value, scale, unit, must, aim):
    shown = value and f"{value / scale:.{1 if unit == 'µs' else 3}f} {unit}"
    return target(what, f"{must:g} {unit} (aim: {aim:g})", needs, value and (shown, value <= must * scale))


def gain_target(rows, what, op, case, must):
    wanted = "no slower than unfused" if must == 1 else f"{must:g} times as fast as unfused"
    value, limit = gain(rows, op, case), most(rows, op, case)
    shown = value and f"{value:.2f} times"
    if limit and value < must:
        shown += f"; a pure read of its bytes: {limit:.2f}"
    return target(what, wanted, f"{op} {case} by cuda and unfused", value and (shown, value >= must))


def share_target(rows, ceilings, what, op, case, must):
    record = rows.by_key.get((op, case, "cuda"))
    value = views.stream_share(record, ceilings) if record else None
    shown = value and percent(value)
    read = record and views.pure_read_ns(rows, record.number("bytes"))
    if value and value < must and read:
        shown += f"; a pure read of its bytes: {percent(value * record.ns / read)}"
    return target(what, f"{percent(must)} of the read stream", f"{op} {case}", value and (shown, value >= must))


def best_step(rows, case):
    found = [ns(rows, "decode_step", case, i) for i in ("cuda", "cuda:graph", "cuda:persistent")]
    return min((t for t in found if t), default=None)


def targets(rows, ceilings):
    op = "cluster_attn"
    times = []
    for keys, must, aim in MODULE_US:
        case = f"llama2_7b_b1_kv{keys}"
        times.append(time_target(f"fused module, {case}", f"{op} {case}", ns(rows, op, case), 1e3, "µs", must, aim))
    yield from for_h200(times, rows)
    for keys in LENGTHS:
        case = f"llama2_7b_b1_kv{keys}"
        must = 1.25 if keys == 1024 else 1
        yield gain_target(rows, f"against unfused, {case}", op, case, must)
    for keys, must in ((1024, 0.7), (4096, 0.8), (8192, 0.8), (16384, 0.8)):
        case = f"llama3_8b_b1_kv{keys}"
        yield share_target(rows, ceilings, f"fused module, {case}", op, case, must)
    for keys in (1024, 4096):
        case = f"llama2_7b_b16_kv{keys}"
        yield gain_target(rows, f"batch 16, {case}", op, case, 1)
    case = "dsv2lite_b1_kv1024"
    yield gain_target(rows, f"MLA module, {case}", "cluster_mla", case, 1.35)
    times = []
    for shape, must, aim in TPOT_MS:
        name = f"{shape}_b1_kv1024"
        times.append(
            time_target(f"time per token, {name}", f"decode_step {name}", best_step(rows, name), 1e6, "ms", must, aim)
        )
    yield from for_h200(times, rows)
    yield share_target(rows, ceilings, f"time per token, {case}", "decode_step", case, 0.6)
