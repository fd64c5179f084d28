# SPDX-License-Identifier: Apache-2.0
"""The serving engine: claims AT-11 to AT-14 and NF-9 to NF-11.

Rows: op kv_waste, scheduler_claims and prefix_trace (serving/*/*_test.c of those names) from the CPU alone; throughput,
sharing_speed (serving/) and kv_move_link (fused/) need a GPU.  A row with "simulated" counts pages and tokens over
randomly drawn lengths; nothing in it was timed, and the page says so.
"""

from sections import tree_drawing
from base.page import DASH, fixed, num
from sections.serving_section import number, one
from base.verdicts import Claim

VLLM = "Kwon et al. 2023, vLLM (arXiv 2309.06180)"
SGLANG = "Zheng et al. 2023, SGLang (arXiv 2312.07104)"
NANOFLOW = "Zhu et al. 2024, NanoFlow (arXiv 2408.12757)"


def host(rows, op, case):
    """The row of the CPU, if it exists and is correct."""
    record = rows.by_key.get((op, case, "host"))
    return record if record and record.get("ok") is not False else None


def numbers(record, *keys):
    """The values of these keys, or None if the row or one of them is missing."""
    found = [number(record, key) for key in keys]
    return None if None in found else found


def said(text, *records):
    return text + " (simulated)" * any(r.get("simulated") is True for r in records)


def percent(share, places=1):
    return f"{fixed(100 * share, places)}%"


def at_11(rows):
    claim = Claim(
        "AT-11",
        "Paging wastes under 4% of the KV cache, reserving wastes 60% to 80%",
        f"{VLLM}, as summarised by its authors; A10G and A100",
        "The pool of this engine with 128 sequences that decode concurrently, each replaced when its answer is complete:"
        " the share of the allocated memory that holds no token, mean over the steps. Lengths are drawn with the means"
        " of ShareGPT, the source of the paper's requests; half a page is lost at the end of each sequence, so the loss"
        " is larger for shorter ones.",
    )
    row, eight = host(rows, "kv_waste", "waste_page16"), host(rows, "kv_waste", "waste_page8")
    result, found = None, numbers(row, "sharegpt_waste", "alpaca_waste")
    if found:
        other = f"; Alpaca's shorter ones: {percent(found[1])}"
        if numbers(eight, "alpaca_waste"):
            other += f", in pages of 8 {percent(number(eight, 'alpaca_waste'))}"
        result = (said(percent(found[0]) + other, row), found[0] < 0.04, percent(found[0]))
    claim.part("pages of 16 tokens", "under 4%", "under 4%", "kv_waste waste_page16", result)
    result, found = None, numbers(row, "sharegpt_reserved", "alpaca_reserved")
    if found:
        text = percent(found[0])
        result = (said(f"{text}; Alpaca's: {percent(found[1])}", row), 0.6 <= found[0] <= 0.8, text)
    claim.part("space for the longest length reserved, 2048 tokens", "60% to 80%", "60% to 80%", "kv_waste waste_page16", result)
    return claim


WIDTHS = (2, 4, 6)


def saved(rows, key):
    """[(share, text)] over the data sets and widths; [] if one is missing."""
    found = [
        (number(host(rows, "kv_waste", f"sharing_{data}_{n}"), key), f"{n} on {name}")
        for data, name in (("sharegpt", "ShareGPT"), ("alpaca", "Alpaca"))
        for n in WIDTHS
    ]
    return [] if any(share is None for share, _ in found) else found


def at_12(rows):
    claim = Claim(
        "AT-12",
        "Sharing saves up to 55% of the memory in parallel sampling and beam search, for up to 2.2 times the throughput",
        f"{VLLM}, as summarised by its authors; A10G and A100",
        "Memory: pages named by the page tables, and how many of them are distinct, mean over the steps of a request, in"
        " pages of 16 tokens; lengths of answers and beams like those of ShareGPT and Alpaca, beams chosen by random"
        " scores. Throughput: the engine with the shape of Llama-3-8B and random weights, in a pool that holds 32"
        " sequences of 1152 tokens; four answers of 128 tokens to each prompt, as one request and as four requests that"
        " share nothing.",
    )
    first = host(rows, "kv_waste", "sharing_sharegpt_2")
    for what, key, source, rule, holds in (
        ("parallel sampling, 2, 4 and 6 answers", "sampling_saved", "saves", "saves with each", lambda v: min(v) > 0),
        ("beam search, 2, 4 and 6 beams", "beam_saved", "up to 55%", "55% or more at best", lambda v: max(v) >= 0.55),
    ):
        found, result = saved(rows, key), None
        if found:
            (low, at_low), (high, at_high) = min(found), max(found)
            text = f"{percent(low)} ({at_low}) to {percent(high)} ({at_high})"
            result = (said(text, first), holds([share for share, _ in found]), text)
        claim.part(what, source, rule, "kv_waste sharing_*", result)
    row = one(rows, "sharing_speed", "llama3_8b_n4")
    found, result = numbers(row, "shared_tokens_per_s", "apart_tokens_per_s"), None
    if found and found[1] > 0:
        text = f"{found[0] / found[1]:.2f} times ({num(found[0])} against {num(found[1])} tokens/s)"
        result = (text, found[0] >= 2.2 * found[1], text)
    claim.part("throughput, four answers", "up to 2.2 times", "at least 2.2 times", "sharing_speed llama3_8b_n4", result)
    return claim


# The source's description of each step, with its letters for the nodes; b' is the remainder of b after a split.
# (description, added: (node, parent), nodes that were split, evicted)
PICTURES = (
    ("the tree is empty", (), (), ()),
    ("a chat is one edge with one new node", (("b", "a"),), (), ()),
    ("the prefix is found, the turn is appended", (("c", "b"),), (), ()),
    ("b is split, so that two chats share the system prompt", (("d", "b"),), ("b",), ()),
    ("c is evicted, the turn is added below d", (("h", "d"),), (), ("c",)),
    ("the root gets a second child", (("e", "a"),), (), ()),
    ("e is split, so that all queries share the examples", (("j", "e"), ("k", "e"), ("l", "e")), ("e",), ()),
    ("all of the second chat is evicted: g and h", (("f", "b'"),), (), ("g", "h")),
    ("i, k and l are evicted; answers go below j's question", (("m", "j"), ("n", "j"), ("o", "j")), ("j",), ("i", "k", "l")),
)
FOUND = (3, 5, 9)  # steps whose whole prompt is in the tree according to the source: its keys and values are reused


def happened(before, now):
    """(added, split, evicted) of a step, in the form of PICTURES.  A node that is not new and whose path did not end
    there before is the first half of a split node."""
    ends = {before.path(n) for n in before.nodes} if before else set()
    added = tuple(sorted((n.name, n.parent) for n in now.nodes if n.state == "+"))
    split = tuple(sorted(n.name for n in now.nodes if n.state != "+" and now.path(n) not in ends))
    return added, split, tuple(sorted(n.name for n in now.evicted))


def whole(before, now):
    """Whether a step's tree is the previous one except for the nodes added and evicted.  Compares paths, not letters."""
    ends = {before.path(n) for n in before.nodes} if before else set()
    gone, new = {now.path(n) for n in now.evicted}, {now.path(n) for n in now.nodes if n.state == "+"}
    return gone <= ends and (ends - gone) | new <= {now.path(n) for n in now.nodes}


def told(added, split, evicted):
    texts = [f"{name} below {parent}" for name, parent in added]
    return "; ".join(
        text
        for text in (
            "added " + ", ".join(texts) if texts else "",
            "split " + ", ".join(split) if split else "",
            "evicted " + ", ".join(evicted) if evicted else "",
        )
        if text
    )


def at_13(rows):
    claim = Claim(
        "AT-13",
        "The prefix tree goes through the nine steps of the source's figure",
        f"{SGLANG}, figure 3: RadixAttention operations with an LRU eviction policy",
        "The prefix tree and the pool of the engine, with pages of one token as in the source, get the same requests."
        " The source gives no lengths; these were chosen to cause its events in 120 pages. Nodes and evictions are"
        " read from the tree after each step; the figure in the section on serving shows them all.",
    )
    found = tree_drawing.steps(rows)
    for i, (source, *wanted) in enumerate(PICTURES):
        result = None
        if found:
            before, now = found[i - 1] if i else None, found[i]
            got = happened(before, now)
            text = told(*got) or ("nothing" if now.nodes else "no node")
            holds = got == tuple(wanted) and whole(before, now) and (i > 0 or not now.nodes)
            if now.number in FOUND:
                text += f"; {num(now.found)} of {num(now.prompt)} prompt tokens found"
                holds = holds and bool(now.prompt) and now.found == now.prompt
            result = (text, holds, f"({now.number}) {text}")
        rule = (told(*wanted) or "no node") + "; its whole prompt is found" * (i + 1 in FOUND)
        claim.part(f"step\u00a0{i + 1}", source, rule, f"{tree_drawing.OP} step1 to step{tree_drawing.STEPS}", result)
    return claim


def at_14(rows):
    claim = Claim(
        "AT-14",
        "Cache-aware scheduling raises the hit rate",
        f"{SGLANG}: longest shared prefix first",
        "The scheduler of the engine with 480 questions about 24 documents in random order and memory for ten of the"
        " documents: the share of prompt tokens found in the cache, by how many later requests may overtake a request.",
    )
    row = host(rows, "scheduler_claims", "longest_prefix_first")
    found, result = numbers(row, "arrival_hits", "longest_hits"), None
    if found:
        text = f"{percent(found[1])}; in order of arrival {percent(found[0])}"
        result = (said(text, row), found[1] > found[0], text)
    needs = "scheduler_claims longest_prefix_first"
    claim.part("longest prefix first", "higher", "higher than in order of arrival", needs, result)
    found, result = numbers(row, "arrival_hits", "bound16_hits", "bound64_hits"), None
    if found:
        text = f"{percent(found[1])} at 16, {percent(found[2])} at 64"
        result = (said(text, row), found[0] < found[1] <= found[2], text)
    claim.part("the same, with at most 16 or 64 overtaking requests", DASH, "higher, and no lower with the wider bound", needs, result)
    return claim


def kept(rows):
    """The throughput row with all keys and values offloaded, for the model that was also run without offloading."""
    found = rows.find("throughput", where=lambda r: r.case.startswith("llama3_8b") and r.case.endswith("_keep"))
    return next((r for r in found if r.on_gpu and r.get("ok") is not False), None)


def nf_9(rows):
    claim = Claim(
        "NF-9",
        "Offloading keys and values costs 3.0% and saves 3.02 times the recomputation in multi-round conversations",
        f"{NANOFLOW}, section 6.4; 8 x A100, LMSYS-Chat",
        "Cost: all tokens per second with the shape of Llama-3-8B, 1024 in and 512 out, with the keys and values of"
        " every request copied to host memory layer by layer as they are produced, against the same run without"
        " offloading. Saving: 40 conversations of five rounds in turn, in memory that holds a few of them; the number"
        " of prompt tokens computed without and with host memory.",
    )
    plain, keep = one(rows, "throughput", "llama3_8b_1024_512"), kept(rows)
    found, result = (number(plain, "tokens_per_s"), number(keep, "tokens_per_s")), None
    if None not in found and found[0] > 0:
        cost = 1 - found[1] / found[0]
        text = f"{percent(cost)} ({num(found[1])} against {num(found[0])} tokens/s)"
        link = numbers(keep, "gb_per_s", "offloaded", "layer_offloads")
        if link and link[1] > 0:
            text += f"; {num(link[0])} GB/s offloaded, {percent(link[2] / link[1], 0)} of the pages layer by layer"
        result = (text, found[1] >= 0.95 * found[0], text)
    claim.part("cost", "3.0%", "at most 5%", "throughput llama3_8b_1024_512, llama3_8b_*keep", result)
    row = host(rows, "scheduler_claims", "offload")
    found, result = numbers(row, "saved_ratio", "computed_tokens", "computed_with_host"), None
    if found:
        text = f"{found[0]:.2f} times ({num(found[1])} tokens computed without, {num(found[2])} with)"
        result = (said(text, row), found[0] >= 3.02, text)
    claim.part("recomputation saved", "3.02 times", "at least 3.02 times", "scheduler_claims offload", result)
    return claim


def copied(rows, direction, shape):
    """{method: ns} of page transfers between host memory and the cache, by the methods of fused/cache/kv_move_link_test.c."""
    found = {
        way: rows.by_key.get(("kv_move_link", f"pages_{direction}_{shape}", way)) for way in ("pieces", "staged", "cuda")
    }
    return {way: r.ns for way, r in found.items() if r and r.ns and r.get("ok") is not False}


def nf_10(rows):
    claim = Claim(
        "NF-10",
        "A contiguous copy with a scatter on the device is 7 to 10 times as fast as copies of fragments",
        f"{NANOFLOW}, section 4.2.2; 8 x A100",
        "Pages from pinned host memory into the cache and back: by one copy for each page, layer and side (K or V); by"
        " one contiguous copy and one launch that moves the data between it and the pages (the source's method); and by"
        " one launch that accesses host memory over the link. Each transfer is verified completely.",
    )
    for what, direction, shape, source, least in (
        ("in, pages of 16, Llama-2-70B over 8 GPUs: 4 KiB a piece", "in", "llama2_70b_of8_page16", "7 to 10 times", 7),
        ("in, pages of 16, Llama-3-8B: 32 KiB a piece", "in", "llama3_8b_page16", "7 to 10 times", 7),
        ("in, pages of 64, Llama-3-8B: 128 KiB a piece", "in", "llama3_8b_page64", DASH, 1),
        ("out, pages of 16, Llama-3-8B", "out", "llama3_8b_page16", DASH, 1),
    ):
        found, result = copied(rows, direction, shape), None
        if "pieces" in found and "staged" in found:
            gain = found["pieces"] / found["staged"]
            text = f"{gain:.1f} times"
            if "cuda" in found:
                text += f"; by a single launch {found['pieces'] / found['cuda']:.1f}"
            result = (text, gain >= least, text)
        claim.part(
            what,
            source,
            f"at least {least} times" if least > 1 else "no slower",
            f"kv_move_link pages_{direction}_{shape}: pieces, staged",
            result,
        )
    return claim


def nf_11(rows):
    claim = Claim(
        "NF-11",
        "Asynchronous scheduling wastes under 1% of the tokens",
        f"{NANOFLOW}, section 4.2.1: answers of more than 100 tokens, whose end is noticed one step late",
        "The scheduler of the engine, one step ahead of the tokens, with 500 requests of ShareGPT's lengths: the share"
        " of sampled tokens that lie behind the end of an answer.",
    )
    row = host(rows, "scheduler_claims", "late_ends")
    found, result = numbers(row, "dropped_share", "draws", "dropped"), None
    if found:
        text = f"{percent(found[0], 2)} ({num(found[2])} of {num(found[1])})"
        result = (said(text, row), found[0] < 0.01, text)
    claim.part("tokens sampled in vain", "under 1%", "under 1%", "scheduler_claims late_ends", result)
    return claim


def claims(rows):
    return [at_11(rows), at_12(rows), at_13(rows), at_14(rows), nf_9(rows), nf_10(rows), nf_11(rows)]
