#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the claims on attention (AT-1 to AT-7, FI-1 to FI-7): python3 reports/tests/attention_claims_test.py"""

import os
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from base import plots  # noqa: E402
from claims import attention_claims, flashinfer_claims  # noqa: E402
from tests.samples import TestCase, claims_of, page_of, raw, recording, rows_of  # noqa: E402

NAMES = (*(f"AT-{i}" for i in range(1, 8)), *(f"FI-{i}" for i in range(1, 8)))
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
SRAM = 51200  # elements


def teach(impl, n, constant=8, power=1, moved=1.0):
    """Counts of an algorithm: `constant` N^2 d^2 / M elements, memory as N to this power."""
    forward = constant * (n * 64) ** 2 / SRAM * 2 * moved
    return {
        "v": 1, "op": "attn_teach", "case": f"n{n}_d64", "impl": impl, "ok": True, "gpu": "a CPU", "driver": "",
        "kv_len": n, "head_dim": 64, "sram_bytes": 2 * SRAM, "forward_bytes": forward, "backward_bytes": 3 * forward,
        "forward_memory_bytes": 2 * n**power, "backward_memory_bytes": 2 * n**power, "simulated": True,
    }  # fmt: skip


def counted(standard=2, flash=1, constants=(12, 8), moved=1.0):
    """flash: the power of N that FlashAttention's memory grows with; moved: factor of its bytes at all lengths."""
    out = []
    for n in LENGTHS:
        out.append(teach("standard", n, 58, standard))
        out += [teach(impl, n, c, flash, moved) for impl, c in zip(("flash1", "flash2"), constants)]
    return out


def heads(bytes_1=1.0, times=(240e3, 66e3, 33e3, 10e3), one=(23e3, 12e3)):
    """bytes_1: factor of the bytes with one KV head"""
    out = [
        raw("attn_paged", case, ns=ns, bytes=1e6 * n * (bytes_1 if n == 1 else 1))
        for (n, case), ns in zip(attention_claims.MANY.items(), times)
    ]
    return out + [raw("attn_paged", case, ns=ns) for case, ns in zip(attention_claims.ONE.values(), one)]


def blocks(mla=1152, heads_8=4096):
    out = []
    for op, shape, each in (
        ("cluster_mla", "dsv2lite_b1", mla), ("cluster_attn", "llama2_7b_b1", 16384), ("cluster_attn", "llama3_8b_b1", heads_8),
    ):  # fmt: skip
        out += [raw(op, f"{shape}_kv{n}", bytes=10**6 + each * n) for n in (1024, 4096)]
    return out


def speeds(standard=3.0, gpt2=7.6, ladder=3.0, causal=1.7, fp8=1.81, plain=0.02, rotated=0.01, space=1.1):
    """With the default arguments all claims on speed hold, most of them with no margin."""
    out = [raw("attn_bwd", f"h16_d128_{shape}_causal_bf16", workspace_bytes=round(1e8 * f), tflops=500)
           for shape, f in (("b4_s4096", 1), ("b1_s16384", space))]  # fmt: skip
    for (_, case), ratio in zip(attention_claims.STANDARD, (1.5, standard, 2)):
        out += [raw("attn_dense", case), raw("attn_dense", case, "unfused", 1000 * ratio)]
    out += [raw("attn_dense", attention_claims.GPT2), raw("attn_dense", attention_claims.GPT2, "unfused", 1000 * gpt2)]
    for _, case in attention_claims.CAUSAL:
        out += [raw("attn_dense", f"{case}_causal_bf16", tflops=600), raw("attn_dense", f"{case}_bf16", ns=1000 * causal, tflops=550)]
        out.append(raw("attn_fp8", f"{case}_causal_bf16", ns=1000 / (fp8 if "16384" in case else 1.2)))
        out.append(raw("attn_fp8", f"{case}_bf16", ns=1000 * causal / 1.3))
    out.append(raw("attn_dense", attention_claims.LADDER, "ladder1", 1000 * ladder))
    return out + [raw("attn_fp8", f"outliers_{how}", rmse=e) for how, e in (("plain", plain), ("rotated", rotated))]


def engine(token=0.705, rope=0.715, two_parts=0.865, sampled=0.865, page1=1.045, prefill=1.145, plans=(1.09, 0.99, 0.99), equal=8,
           variant=0.975):  # fmt: skip
    """Rows of FI-1 to FI-7, all times relative to 1000 ns of what they are compared with."""
    out = []

    def pair(op, case, share, other_op, other, impl="cuda"):
        out.extend([raw(op, case, ns=1000 * share, gbps=2000), raw(other_op, other, impl, 1000, gbps=1000)])

    case = "llama3_8b_b16_kv1024"
    out.append(raw("generate", case, "cuda:unfused", 1000 * token))
    out.append(raw("generate", case, "cuda:ladder2", 1000))
    pair("attn_variant", flashinfer_claims.ROTATED, rope, "attn_variant", flashinfer_claims.ROTATED, "unfused")
    for _, case in flashinfer_claims.SAMPLES:
        pair("attn_bsr", case, two_parts, "attn_bsr", f"one_list_{case}")
    pair("generate", "llama3_8b_n4_kv4096", sampled, "generate", "llama3_8b_n4_kv4096", "cuda:one_list")
    pair(*flashinfer_claims.PAGE_1, page1, *flashinfer_claims.CONTIGUOUS)
    pair(*flashinfer_claims.PREFILL[0], prefill, *flashinfer_claims.PREFILL[1])
    out.extend(raw("attn_bsr", case) for name, case in flashinfer_claims.FORMS if name != "a shared prefix")
    for (_, planned, fixed), share in zip(flashinfer_claims.LENGTHS, plans):
        pair("attn_bsr", planned, share, "attn_paged", fixed)
    out.append(raw("attn_replay", "h32_8_b16_bf16", replays=8, equal=equal))
    for _, name in flashinfer_claims.VARIANTS:
        out.append(raw("attn_variant", f"{name}_{flashinfer_claims.PLAIN}", ns=1000 / variant))
    return out + [raw("attn_variant", f"plain_{flashinfer_claims.PLAIN}")]


def records(**of):
    """All rows, with other arguments for some of the functions above."""
    makers = (counted, heads, blocks, speeds, engine)
    return [r for make in makers for r in make(**of.get(make.__name__, {}))]


def verdicts(found):
    claims = claims_of(found)
    return {name: claims[name].verdict()[1] for name in NAMES}


class Verdicts(TestCase):
    def test_all_reproduced(self):
        self.assertEqual(verdicts(records()), dict.fromkeys(NAMES, "reproduced"))

    def test_nothing_measured(self):
        self.assertEqual(verdicts([]), dict.fromkeys(NAMES, "not measured"))
        for claim in attention_claims.claims(rows_of([])) + flashinfer_claims.claims(rows_of([])):
            self.assertTrue(claim.parts and all(p.needs and p.holds is None for p in claim.parts), claim.id)

    def test_each_at_its_limit(self):
        for names, bad in (
            ("AT-1", {"heads": {"bytes_1": 1.03}}),
            ("AT-1", {"heads": {"times": (66e3, 66e3, 33e3, 10e3)}}),
            ("AT-1", {"heads": {"times": (240e3, 66e3, 66e3, 10e3)}}),
            ("AT-1", {"heads": {"one": (12e3, 12e3)}}),
            ("AT-2", {"blocks": {"mla": 1024}}),
            ("AT-2", {"blocks": {"heads_8": 1152}}),
            ("AT-3 AT-7", {"counted": {"flash": 1.2}}),
            ("AT-3 AT-7", {"counted": {"standard": 1.5}}),
            ("AT-3", {"counted": {"constants": (12.7, 8)}}),
            ("AT-3", {"counted": {"constants": (12, 7.5)}}),
            ("AT-3 AT-7", {"counted": {"moved": 8}}),
            ("AT-4", {"speeds": {"standard": 2.9}}),
            ("AT-4", {"speeds": {"gpt2": 7.5}}),
            ("AT-4", {"speeds": {"ladder": 2.9}}),
            ("AT-5", {"speeds": {"causal": 1.69}}),
            ("AT-6", {"speeds": {"fp8": 1.79}}),
            ("AT-6", {"speeds": {"plain": 0.01}}),
            ("AT-6", {"speeds": {"rotated": 0.0101}}),
            ("AT-7", {"speeds": {"space": 1.11}}),
            ("FI-1", {"engine": {"token": 0.72}}),
            ("FI-2", {"engine": {"rope": 0.73}}),
            ("FI-3", {"engine": {"two_parts": 0.88}}),
            ("FI-3", {"engine": {"sampled": 0.88}}),
            ("FI-4", {"engine": {"page1": 1.06}}),
            ("FI-4", {"engine": {"prefill": 1.16}}),
            ("FI-5", {"engine": {"plans": (1.11, 0.99, 0.99)}}),
            ("FI-5", {"engine": {"plans": (1.09, 1, 0.99)}}),
            ("FI-5", {"engine": {"plans": (1.09, 0.99, 1)}}),
            ("FI-6", {"engine": {"equal": 7}}),
            ("FI-7", {"engine": {"variant": 0.96}}),
        ):
            found = verdicts(records(**bad))
            for name in names.split():
                self.assertTrue(found.pop(name).startswith("refuted"), (name, bad))
                self.assertTrue(all(p.why for p in claims_of(records(**bad))[name].failing()), bad)
            self.assertEqual(set(found.values()), {"reproduced"}, (names, bad))

    def test_times_of_different_runs_are_marked(self):
        one = [{**r, "source": "1"} for r in records()]
        two = [{**r, "source": "2"} if r["op"] == "attn_dense" else r for r in one]
        for found, marked in ((one, False), (two, True)):
            here = claims_of(found)["FI-4"].parts[2].here
            self.assertEqual(here.endswith(", in different runs"), marked, here)

    def test_without_any_one_row(self):
        """A missing row makes no verdict better, and its part names what it needs."""
        all_rows = records()
        for i, gone in enumerate(all_rows):
            found = {c.id: c for c in claims_of(all_rows[:i] + all_rows[i + 1 :]).values() if c.id in NAMES}
            lacking = {name for name, c in found.items() if c.verdict()[1] != "reproduced"}
            self.assertTrue(all(found[name].lacking() and not found[name].failing() for name in lacking), gone)
            optional = gone["op"] == "attn_teach"  # one length of several
            self.assertEqual(bool(lacking), not optional, gone)

    def test_a_row_that_failed_decides_nothing(self):
        bad = [{**r, "ok": False} for r in records()]
        found = verdicts(bad)
        self.assertEqual((found.pop("FI-4"), found.pop("FI-6")), ("refuted", "reproduced"))
        self.assertEqual(set(found.values()), {"not measured"})

    def test_a_wrong_result_of_one_form_refutes_one_kernel(self):
        found = records()
        next(r for r in found if r["case"].startswith("tree64"))["ok"] = False
        claim = claims_of(found)["FI-4"]
        self.assertEqual([p.holds for p in claim.parts], [False, True, True])
        self.assertIn("a token tree", claim.parts[0].why)

    def test_only_one_kernel_for_contiguous_keys_is_no_baseline(self):
        found = [r for r in records() if r["case"] != flashinfer_claims.CONTIGUOUS[1]]
        found.append(raw(*flashinfer_claims.PAGED, ns=1000))
        self.assertIsNone(claims_of(found)["FI-4"].parts[1].holds)
        found = records() + [raw(*flashinfer_claims.PAGED, ns=990)]  # faster than one block a request
        self.assertIs(claims_of(found)["FI-4"].parts[1].holds, False)

    def test_rows_of_the_host_decide_nothing_but_counts(self):
        found = verdicts([{**r, "impl": "cpu", "driver": ""} if r["op"] != "attn_teach" else r for r in records()])
        self.assertEqual(found.pop("AT-3"), "reproduced")
        self.assertEqual(set(found.values()), {"not measured"})

    def test_the_numbers_are_in_the_text(self):
        claims = claims_of(records())
        for name, part, text in (
            ("AT-1", 1, "240.0 µs with 32, 66.00 µs with 8"),
            ("AT-2", 1, "1152 B against 16\u202f384 B: 14.2 times"),
            ("AT-3", 1, "2.00 times for twice the length; 32 KiB at 16K (simulated)"),
            ("AT-5", 0, "1.70 times (600 TFLOP/s causal, 550 without a mask)"),
            ("AT-6", 0, "1.20 to 1.81 times (4 shapes"),
            ("AT-7", 3, "100 and 110 MB, at 500 and 500 TFLOP/s"),
            ("FI-1", 0, "30% less"),
            ("FI-5", 1, "0.99 µs against 1.00 µs: 1% less; 2.00 and 1.00 TB/s"),
            ("FI-6", 0, "8 of 8 replays equal"),
        ):
            self.assertIn(text, claims[name].parts[part].here)


class Section(TestCase):
    def test_counts_of_the_cpu_stand_beside_a_recording(self):
        recorded = [r for r in records() if r["driver"]]
        text = self.check_html(page_of([r for r in records() if not r["driver"]], recorded))
        self.has(text, "times fewer: 4.8 at 256")
        self.has(text, 'id="engine-attention"')

    def test_a_page_without_rows_names_them(self):
        text = self.check_html(page_of([raw("stream", "read_1g", bytes=1 << 30, gbps=4000.0)]))
        for name in ("attn_dense", "attn_bsr", "attn_bwd"):
            self.has(text, f"<code>{name} *</code>")
        self.has(text, "(claim FI-5): a plan", False)

    def test_figures(self):
        text = self.check_html(page_of(records()))
        for claim in ("AT-5 to AT-7", "AT-1", "AT-3 and AT-7", "FI-3", "FI-5"):
            self.has(text, f"claims {claim})" if " " in claim else f"claim {claim})")

    def test_flashinfers_tests(self):
        numbers = dict(tests=900, chosen=9, passed=3, failed=1, refused=2, missing=2, skipped=1, left=0)
        reasons = {"refusals": {"k: e5m2": 2}, "modules": {"ROPE_LLAMA": 1, "head_dim 512": 1}}
        rows = [raw("dropin", "test_batch_decode_kernels", impl_version="FlashInfer 0.6.17", **numbers, **reasons)]
        text = self.check_html(page_of(records() + rows))
        self.has(text, "(FlashInfer 0.6.17): 3 passed and 1 failed")
        self.has(text, "k: e5m2 (2), ROPE_LLAMA (1), head_dim 512 (1)")
        self.has(self.check_html(page_of(records())), "tests that need a feature", False)

    def test_plots(self):
        if not PLT:
            self.skipTest("no matplotlib")
        with mock.patch.object(plots, "plt", PLT):
            text = self.check_html(page_of(records()))
        self.assertGreaterEqual(text.count("<svg"), 5)
        self.assertTrue(recording(records()).gpu)


PLT = plots.plt

if __name__ == "__main__":
    unittest.main()
