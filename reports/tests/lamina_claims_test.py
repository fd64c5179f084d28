#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of Lamina's claims on synthetic records: python3 reports/tests/lamina_claims_test.py"""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.samples import TestCase, claims_of, moved, page_of, raw  # noqa: E402


def simulated(case, **members):
    return {
        "v": 1, "op": "disagg_sim", "case": case, "impl": "simulated", "ok": True, "simulated": True, "gpu": "",
        "driver": "", **members,
    }  # fmt: skip


def rows(gbps=25.0, latency=28.0, wait=0, exact=True, gain=1.2, batch=2.4, turn=1.3, heads=1.0, attn_gpu="h20"):
    """Rows of a simulation in which everything that it decides holds."""
    out = [
        simulated(f"fig4_llama3_70b_b{b}_kv{kv}_x_y", needed_gbps=gbps, needed_gbps_latency=latency)
        for b in (1, 300)
        for kv in (1024, 4096, 8192)
    ]
    out += [simulated(f"fig8_lanes{n}", waited_ns=wait, idle_ns=0, exact=exact) for n in range(2, 9)]
    out.append(
        simulated(
            "fig10_trace_llama3_70b", model_gpu="h100", attn_gpu=attn_gpu, model_gpu_gain_per_dollar=gain, model_gpu_batch_gain_per_dollar=batch
        )
    )
    out.append(simulated("fig9_trace_llama3_70b_b64_workers4", in_turn=turn, least_loaded=1.05, heads=heads))
    return out


def holds(records, claim):
    return [p.holds for p in claims_of(records)[claim].parts]


class Simulated(TestCase):
    def test_what_the_simulation_decides(self):
        self.assertEqual(claims_of(rows())["LA-3"].verdict()[1], "reproduced")
        self.assertEqual(claims_of(rows())["LA-11"].verdict()[1], "reproduced")
        self.assertEqual(holds(rows(), "LA-8"), [True, None])
        self.assertEqual(holds(rows(), "LA-9"), [True, True, None])
        for claim in ("LA-3", "LA-8", "LA-9", "LA-11"):
            self.assertIn("simulated", claims_of(rows())[claim].method)

    def test_each_at_its_limit(self):
        for claim, at, good, bad in (
            ("LA-3", 0, {"gbps": 29.9}, {"gbps": 30.0}),
            ("LA-3", 3, {"latency": 29.9}, {"latency": 30.0}),
            ("LA-3", 3, {}, {"latency": None}),
            ("LA-8", 0, {}, {"wait": 1}),
            ("LA-8", 0, {}, {"exact": False}),
            ("LA-9", 0, {"gain": 1.161}, {"gain": 1.16}),
            ("LA-9", 1, {"batch": 2}, {"batch": 1.9}),
            ("LA-11", 0, {}, {"heads": 1.125}),
            ("LA-11", 1, {"turn": 1.1}, {"turn": 1.05}),
        ):
            self.assertIs(holds(rows(**good), claim)[at], True, (claim, good))
            self.assertIs(holds(rows(**bad), claim)[at], False, (claim, bad))
            self.assertTrue(claims_of(rows(**bad))[claim].parts[at].why)

    def test_equal_gpus_do_not_count(self):
        self.assertEqual(holds(rows(gain=0.5, attn_gpu="h100"), "LA-9"), [None, None, None])

    def test_one_missing_number_of_lanes_decides_nothing(self):
        self.assertEqual(holds([r for r in rows() if r["case"] != "fig8_lanes7"], "LA-8"), [None, None])


class Measured(TestCase):
    def records(self, many=60000, tflops=100, gbps=4000, parts=(), layer=()):
        return [
            raw("gemm", "m1_n28672_k4096_bf16", ns=50000, tflops=5, gbps=4400, bytes=1, flops=1),
            raw("gemm", "m64_n28672_k4096_bf16", ns=many, tflops=tflops, gbps=4000, bytes=1, flops=1),
            raw("gemm", "m8192_n8192_k8192_bf16", ns=1e6, tflops=800, gbps=300, bytes=1, flops=1000),
            moved("attn_paged", "decode_h32_8_b64_kv4096_bf16", 10**9, gbps),
            moved("attn_paged", "decode_h32_8_b16_kv1024_bf16", 10**9, 1000),
            moved("attn_paged", "decode_h32_8_b64_kv4096_sms48_bf16", 10**9, 1000),
            *(moved("attn_paged", f"decode_h32_8_b64_kv4096_sms{n}_bf16", 10**9, g) for n, g in parts),
            *(
                raw("gemm", f"m{m}_n{n}_k{k}_bf16", ns=ns, tflops=5, gbps=4400, bytes=1, flops=1)
                for m, ns in layer
                for n, k in ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))
            ),
            moved("stream", "read_1g", 1 << 30, 4500),
        ]

    def test_products_and_attention(self):
        self.assertEqual(holds(self.records(), "LA-1"), [True, True, None])
        self.assertEqual(holds(self.records(many=63000, tflops=170), "LA-1"), [False, False, None])
        self.assertEqual(holds(self.records(), "LA-2"), [True, None])
        self.assertEqual(holds(self.records(gbps=3000), "LA-2"), [False, None])

    def test_lanes_on_gpus(self):
        def lanes(two, three):
            return [raw("disagg", f"lanes_cuda_paced_{n}", lanes=n, busy_pct=b) for n, b in ((2, two), (3, three)) if b]

        self.assertIs(holds(lanes(95.1, 99), "LA-8")[1], True)
        self.assertIs(holds(lanes(94.9, 99), "LA-8")[1], False)
        self.assertIs(holds(lanes(99, 94.9), "LA-8")[1], False)
        self.assertIsNone(holds(lanes(99, None), "LA-8")[1])

    def test_a_layer_of_70b_and_a_part_of_the_sms(self):
        # 96 rows of the four products are 164 GFLOP
        for last, result in ((300000, True), (320000, False)):
            self.assertEqual(holds(self.records(layer=((1, 250000), (96, last))), "LA-1"), [True, True, result])
        self.assertEqual(holds(self.records(layer=((1, 210000), (96, 250000))), "LA-1")[2], False)
        self.assertEqual(holds(self.records(parts=((78, 3200),)), "LA-2"), [True, True])
        self.assertEqual(holds(self.records(parts=((78, 3100),)), "LA-2"), [True, False])


class Section(TestCase):
    def way(self, case, **members):
        figures = {"tokens_per_s": 100, "batch": 50, "tbt_ms": 20, "p99_tbt_ms": 30, "dollars_per_hour": 4}
        return simulated(
            case, model_gpu="h100", attn_gpu="h20", a=2, lanes=2, tokens_per_dollar=9000, **figures, **members
        )  # fmt: skip

    def test_tables(self):
        best = {"gain_per_dollar": 0.9, "same_gpus_gain": 0, "b": 4}
        text = page_of([
            *(r for r in rows() if "fig10" not in r["case"]),
            self.way("fig10_trace_llama3_70b", **best),
            self.way("fig11_trace_llama3_70b_x", b=4), self.way("fig11_trace_llama3_70b_y", b=0),
        ])  # fmt: skip
        self.assertIn("Attention on GPUs of its own, simulated", text)
        for part in ("2 h100 + 4 h20, 2 lanes", "2 h100, one engine", "none runs", "Nothing in this section was run"):
            self.assertIn(part, text)

    def test_runs_beside_measured_ones(self):
        name = "run_llama3_8b_lanes{}_b{}_kv1024_x_x"
        text = page_of([
            simulated(name.format(2, 128), pass_us=11000, attention_workers=1, lanes=2, requests_a_lane=128),
            simulated(name.format(1, 32), pass_us=5000, attention_workers=1, lanes=1, requests_a_lane=32),
            raw("disagg", "lanes_cuda", requests_a_lane=128, one_lane=12000, one_lane_of_all=15000, two_lanes=25600, whole=14000,
                link="nvlink", two_over_one=2.1, over_two_engines=0.9),
        ])  # fmt: skip
        self.assertIn("+10.0%", text)
        self.assertNotIn("32 requests", text)

    def test_without_rows(self):
        self.assertIn("simulation of disaggregated decoding", page_of([]))


class Missing(TestCase):
    def test_without_rows(self):
        found = claims_of([])
        for i in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11):
            self.assertEqual(found[f"LA-{i}"].verdict()[1], "not measured")
            self.assertTrue(all(p.holds is None and p.needs for p in found[f"LA-{i}"].parts))

    def test_runs_are_not_claimed_from_simulations(self):
        for i in (5, 6, 7, 10):
            self.assertEqual(claims_of(rows())[f"LA-{i}"].verdict(), ("none", "not measured"))


class Runs(TestCase):
    def host(self, case, op="disagg_fault", **members):
        return raw(op, case, "cpu", **members)

    def test_tokens(self):
        good = self.host("tokens_llama3_tiny", tokens=56, equal=52, wrong_answers=0)
        cuda = raw("disagg_fault", "tokens_cuda_llama3_tiny", tokens=56, equal=52, wrong_answers=0)
        self.assertEqual(holds([good], "LA-5"), [True, None])
        self.assertEqual(claims_of([good, cuda])["LA-5"].verdict()[1], "reproduced")
        self.assertEqual(holds([good, self.host("tokens_x", tokens=56, equal=5, wrong_answers=1), cuda], "LA-5"), [False, True])

    def test_kills(self):
        def killed(role, **more):
            return self.host(f"{role}_killed", **{"kills": 20, "answers": 90, "lost": 0, "changed": 0, **more})

        self.assertEqual(claims_of([killed("attention"), killed("model")])["LA-10"].verdict()[1], "reproduced")
        self.assertEqual(holds([killed("attention", lost=1), killed("model", changed=1)], "LA-10"), [False, False])
        self.assertEqual(holds([killed("attention", kills=19)], "LA-10"), [None, None])

    def test_order(self):
        def order(shape, saved, link="paced", requests=64):
            return raw("disagg_order", f"{shape}_b{requests}_kv1024_{link}", link=link, requests=requests, saved_pct=saved,
                       saved_of_one_product_pct=saved - 1)  # fmt: skip

        for many, few, want in (
            (6.6, 1.75, [True, True]), (26.4, 7.0, [True, True]), (6.5, 1.7, [False, False]), (26.5, 7.1, [False, False]),
        ):  # fmt: skip
            self.assertEqual(holds([order("llama_65b", many), order("llama3_70b", few)], "LA-6"), want)
        batches = [order("llama_65b", 5, requests=32), order("llama_65b", 12.5, requests=128), order("llama_65b", 40, "nvlink")]
        self.assertEqual(holds(batches, "LA-6"), [True, None])
        self.assertIn("12.5% (128 requests); 11.5%", claims_of(batches)["LA-6"].parts[0].here)
        self.assertEqual(holds(batches[2:], "LA-6"), [None, None])

    def test_slices(self):
        def models(slices=33, ok=True, num=25):
            good = [self.host(f"model_x{i}", "slices", attentions=32, slices=33) for i in range(1, num)]
            return [*good, self.host("model_x0", "slices", attentions=32, slices=slices) | {"ok": ok}]

        graphs = self.host("random_graphs", "slices", graphs=11718)
        self.assertEqual(claims_of([*models(), graphs])["LA-7"].verdict()[1], "reproduced")
        self.assertEqual(holds([*models(slices=32), graphs], "LA-7"), [False, True])
        self.assertEqual(holds([*models(ok=False), graphs | {"graphs": 9999}], "LA-7"), [False, False])
        self.assertEqual(holds(models(), "LA-7"), [True, None])
        self.assertEqual(holds([*models(num=24), graphs], "LA-7"), [None, True])

    def test_simulated_runs(self):
        def runs(error, num=6):
            out = []
            for i in range(num):
                out.append(raw("disagg_layer", f"x{i}", requests=i, whole_us=1000, remote_us=2000, local_us=2000))
                out.append(simulated(f"run_x{i}", attention_workers=0, lanes=1, requests_a_lane=i, pass_us=1000 * error))
            return out

        self.assertEqual(holds(runs(1.099), "LA-9")[2], True)
        self.assertEqual(holds(runs(0.89), "LA-9")[2], False)
        self.assertEqual(holds(runs(1.0, num=5), "LA-9")[2], None)


if __name__ == "__main__":
    unittest.main()
