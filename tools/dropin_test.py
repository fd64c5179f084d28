#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/dropin.py and tools/dropin_grid.py, without PyTorch and pytest."""

import collections
import os
import pathlib
import re
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import dropin
import dropin_grid


def report(outcome, longrepr="", when="call", nodeid="attention/test_a.py::test_b[1]"):
    flags = {name: name == outcome for name in ("passed", "failed", "skipped")}
    return types.SimpleNamespace(nodeid=nodeid, when=when, longrepr=longrepr, **flags)


class Folder(unittest.TestCase):
    def test_every_name_leads_to_the_library(self):
        with tempfile.TemporaryDirectory() as top:
            library = pathlib.Path(top, "dropin.so")
            library.write_bytes(b"")
            for _ in range(2):
                dropin.write_folder(library, pathlib.Path(top, "folder"), ["a", "b"])
            sys.path.insert(0, str(pathlib.Path(top, "folder")))
            import flashinfer_jit_cache

            links = list(pathlib.Path(flashinfer_jit_cache.get_jit_cache_dir()).glob("*/*.so"))
            self.assertEqual(["a", "b"], sorted(x.stem for x in links))
            self.assertTrue(all(os.path.realpath(x) == os.path.realpath(library) and x.stem == x.parent.name for x in links))
            self.assertTrue(flashinfer_jit_cache.__version__.startswith(dropin.VERSION))

    def test_names(self):
        names = set(dropin.names())
        self.assertIn("quantization", names)
        self.assertIn(
            "batch_decode_with_kv_cache_dtype_q_f16_dtype_kv_e4m3_dtype_o_f16_dtype_idx_i32_"
            "head_dim_qk_128_head_dim_vo_128_posenc_0_use_swa_False_use_logits_cap_True",
            names,
        )
        self.assertIn(
            "single_prefill_with_kv_cache_dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16_head_dim_qk_64_head_dim_vo_64_"
            "posenc_0_use_swa_True_use_logits_cap_False_f16qk_False_sm90",
            names,
        )
        self.assertFalse([n for n in names if re.search("posenc_[12]|head_dim_qk_512", n)])


class Counts(unittest.TestCase):
    def count(self, *reports):
        grid = dropin_grid.Grid({"test_a.py": 1}, 100)
        for r in reports:
            grid.pytest_runtest_logreport(r)
        return grid, {k: v for k, v in grid.files["test_a.py"].items() if v}

    def test_outcomes(self):
        missing = "Skipping due to missing JIT cache for module: batch_decode_head_dim_qk_512_head_dim_vo_512_posenc_0"
        refused = "E   RuntimeError: cairn: not supported: batch_decode: k: e5m2\nmore"
        grid, counts = self.count(
            report("passed"),
            report("failed", "E   AssertionError: Tensor-likes are not close!"),
            report("failed", refused),
            report("skipped", ("file", 1, f"Skipped: {missing}")),
            report("skipped", ("file", 1, "Skipped: qo_len > kv_len and causal is not supported")),
            report("skipped", ("file", 1, "Skipped: dropin: no time left"), when="setup"),
        )
        self.assertEqual({"passed": 1, "failed": 1, "refused": 1, "missing": 1, "skipped": 1, "left": 1}, counts)
        self.assertEqual({"batch_decode: k: e5m2": 1}, dict(grid.refusals["test_a.py"]))
        self.assertEqual({"head_dim 512": 1}, dict(grid.modules["test_a.py"]))
        self.assertEqual(1, len(grid.failures))

    def test_a_test_counts_once(self):
        phases = [report("passed", when=when) for when in ("setup", "call", "teardown")]
        self.assertEqual({"passed": 1}, self.count(*phases)[1])
        self.assertEqual({"failed": 1}, self.count(report("failed", "boom", when="setup"), phases[2])[1])

    def test_reasons(self):
        for name, reason in (
            ("single_decode_dtype_kv_f16_head_dim_qk_128_posenc_1_use_swa", "ROPE_LLAMA"),
            ("batch_prefill_dtype_q_f16_dtype_kv_u8_head_dim_qk_128_posenc_0", "4-bit keys"),
            ("batch_prefill_dtype_q_e4m3_dtype_kv_e4m3_head_dim_qk_128_posenc_0", "queries of 8 bits"),
            ("fp4_quantization_90", "4-bit keys"),
            ("page", "page"),
        ):
            self.assertEqual(reason, dropin_grid.reason_of_module(name))

    def test_choice_is_fixed_and_fair(self):
        names = [f"attention/test_a.py::test_b[{i}]" for i in range(2000)]
        kept = [n for n in names if dropin_grid.chosen(n, 10)]
        self.assertTrue(150 < len(kept) < 250)
        self.assertTrue(all(dropin_grid.chosen(n, 1) for n in names))

    def test_small_files_are_not_left_out(self):
        def items(count, name):
            return [types.SimpleNamespace(nodeid=f"{name}::t[{i}]", path=pathlib.Path(name)) for i in range(count)]

        grid = dropin_grid.Grid({"a.py": 40, "b.py": 40, "c.py": 40}, 100)
        kept = items(4000, "a.py") + items(400, "b.py") + items(3, "c.py")
        grid.pytest_collection_modifyitems(kept)
        counts = collections.Counter(item.path.name for item in kept)
        self.assertTrue(60 < counts["a.py"] < 140 and 8 < counts["b.py"] < 40 and counts["c.py"] == 3)
        self.assertEqual({"a.py": 40, "b.py": 20, "c.py": 1}, grid.every)
        self.assertEqual([4000, 400, 3], [grid.files[n]["tests"] for n in ("a.py", "b.py", "c.py")])


if __name__ == "__main__":
    unittest.main()
