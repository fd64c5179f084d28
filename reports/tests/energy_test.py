#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the section on energy on synthetic records: python3 reports/tests/energy_test.py"""

import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from sections import energy  # noqa: E402
from report import Context  # noqa: E402
from base.page import Page  # noqa: E402
from base.records import BadRecords, load  # noqa: E402
from tests.samples import TestCase, machine, moved, page_of, raw, rows_of  # noqa: E402

LOADED = {"watts": 500.0, "sm_mhz": 1600, "capped_pct": 75.0}


def energies():
    """Reads of 4 pJ a bit at 500 W; products of 0.5 (16 bits) and 0.25 pJ per FLOP; tokens of 2 J and 0.5 J."""
    return [
        moved("stream", "read_1g", 1 << 30, 3000, joules=(1 << 33) * 4e-12, **LOADED),
        raw("gemm", "m8192_n8192_k8192_bf16", ns=1.5e6, flops=2e12, bytes=4e8, joules=1.0, **LOADED),
        raw("gemm", "m4096_n4096_k4096_bf16", ns=2e5, flops=1e12, bytes=1e8, joules=0.9, **LOADED),
        raw("gemm", "m8192_n8192_k8192_bf16", "peers", ns=1.5e6, flops=2e12, bytes=4e8, joules=1.2, **LOADED),
        raw("gemm", "m1_n4096_k4096_bf16", flops=4e7, bytes=4e7, joules=0.01, **LOADED),
        raw("attn_fp8", "h16_d128_b4_s4096_bf16", flops=1e12, bytes=1e8, joules=0.25, **LOADED),
        raw("decode_step", "dsv2lite_b1_kv1024", joules=2.0, **LOADED),
        raw("decode_step", "dsv2lite_b16_kv1024", joules=8.0, **LOADED),
        raw("decode_step", "layer_llama2_7b_b1_kv1024", joules=0.1, **LOADED),
        raw("generate", "llama3_8b_b16_kv1024", joules=99.0, mj_per_token=777.0, **LOADED),
        raw("throughput", "llama3_8b_1024_512", joules=5000.0, mj_per_token=25.6, tokens_per_s=27000, **LOADED),
        raw("serve", "llama3_8b_online80", joules=900.0, mj_per_token=31.5),
    ]


def cells(page, case):
    """The cells of the rows of this case, as text."""
    rows = re.findall(r"<tr><td>(.*?)</td></tr>", page)
    return [re.sub(r"<[^>]*>", "|", r) for r in rows if f"<code>{case}</code>" in r]


class Energy(TestCase):
    def page(self, records):
        """The section alone."""
        page = Page("Energy")
        energy.section(page, Context(rows_of([*machine(), *records])))
        return self.check_html(page.html(""))

    def test_place(self):
        page = self.check_html(page_of([*machine(), energies()[0]]))
        self.assertLess(page.index('id="energy"'), page.index('id="ceilings"'))
        self.assertTrue(cells(page, "read_1g")[0].startswith("|read_1g|"))

    def test_formulas(self):
        read, product, *_ = rows_of(energies())
        self.assertAlmostEqual(energy.pj_per_bit(read), 4)
        self.assertAlmostEqual(energy.pj_per_flop(product), 0.5)
        self.assertAlmostEqual(energy.seconds(product), 0.002)
        steps = [energy.mj_per_token(r) for r in rows_of(energies()).find("decode_step")]
        self.assertEqual(steps, [2000, 500, None])

    def test_reads(self):
        rows = cells(self.page(energies()), "read_1g")
        self.assertEqual(len(rows), 1)
        # 1 GiB in 34.36 mJ / 500 W
        self.assertEqual([c for c in rows[0].split("|") if c][1:], ["15.6", "500", "1600", "75%", "4"])

    def test_products(self):
        page = self.page(energies())
        rows = cells(page, "m8192_n8192_k8192_bf16")
        self.assertEqual([[c for c in r.split("|") if c][1:3] for r in rows], [["cuda", "1000"], ["peers", "833"]])
        self.assertTrue(rows[0].endswith("|0.5") and rows[1].endswith("|0.6"))
        self.assertEqual(cells(page, "m4096_n4096_k4096_bf16"), [])  # not the least
        self.assertEqual(cells(page, "m1_n4096_k4096_bf16"), [])  # bound by memory
        self.assertTrue(cells(page, "h16_d128_b4_s4096_bf16")[0].endswith("|0.25"))

    def test_tokens(self):
        page = self.page(energies())
        self.assertTrue(cells(page, "dsv2lite_b1_kv1024")[0].endswith("|2000"))
        self.assertTrue(cells(page, "dsv2lite_b16_kv1024")[0].endswith("|500"))
        self.assertEqual(cells(page, "layer_llama2_7b_b1_kv1024"), [])
        self.assertTrue(cells(page, "llama3_8b_b16_kv1024")[0].endswith("|777"))
        self.assertTrue(cells(page, "llama3_8b_1024_512")[0].endswith("|25.6"))
        self.assertTrue(cells(page, "llama3_8b_online80")[0].endswith("|31.5"))

    def test_unknown_share(self):
        some = [{k: v for k, v in r.items() if k != "capped_pct"} for r in energies()]
        self.assertIn("1600|", cells(self.page(some), "read_1g")[0])
        self.assertNotIn("75%", "".join(cells(self.page(some), "read_1g")))

    def test_parts_missing(self):
        page = self.page(energies()[:1])
        self.has(page, "energy of a FLOP")
        self.has(page, "energy of a token")
        self.has(page, "energy of a bit read", False)

    def test_no_rows(self):
        page = self.page([])
        self.has(page, "Not in the records: energy of any row: the rows are older than its measurement.")

    def test_reason(self):
        page = self.page([raw("rope", "rows1_heads32_8_dim128_bf16", no_energy="NVML: nvmlInit_v2: error 9")])
        self.has(page, "energy of any row: NVML: nvmlInit_v2: error 9.")

    def test_malformed(self):
        for key in ("joules", "watts", "capped_pct", "mj_per_token"):
            path = self.path("bad.jsonl", [raw("stream", "read_1g", **{key: "much"})])
            with self.assertRaisesRegex(BadRecords, f"bad.jsonl:1: {key}: 'much' is not a finite number"):
                load(path)


if __name__ == "__main__":
    unittest.main()
