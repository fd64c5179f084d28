#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of validate_merge.py: python3 conformance/validate/validate_merge_test.py"""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import validate_merge  # noqa: E402


def record(number, case="screen.f16", **other):
    return {
        "v": 1,
        "op": "validate",
        "case": case,
        "id": f"{number:016x}",
        "impl": "cuda",
        "gpu": "NVIDIA H100",
        "verdict": "pass",
        "findings": [],
        **other,
    }


class Merge(unittest.TestCase):
    def run_on(self, *lines):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.jsonl")
            with open(path, "w", encoding="utf-8") as f:
                f.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = validate_merge.main([path])
        return status, out.getvalue() + err.getvalue()

    def test_sound_fleet(self):
        status, text = self.run_on(*(record(i, census="aa", gbps=3000 + i) for i in range(8)))
        self.assertEqual(status, 0)
        self.assertEqual(text, "8 GPUs, 8 tests, 0 faults\n")

    def test_census(self):
        """The GPU that differs is named; without a majority, all are; models are not mixed."""
        status, text = self.run_on(*(record(i, census="ab" if i == 5 else "aa") for i in range(8)))
        self.assertEqual(status, 1)
        self.assertEqual(text.count("fail: "), 1)
        self.assertIn("GPU 0000000000000005: screen.f16: its digests differ", text)
        self.assertEqual(self.run_on(record(0, census="a"), record(1, census="b"))[1].count("fail: "), 2)
        self.assertEqual(self.run_on(record(0, census="a"), record(1, census="b", gpu="NVIDIA H200"))[0], 0)

    def test_slow_memory(self):
        rows = [record(i, "hbm", gbps=3000 + i * (i < 7)) for i in range(8)]
        rows[7]["gbps"] = 2800
        status, text = self.run_on(*rows)
        self.assertEqual(status, 0)
        self.assertIn("warn: GPU 0000000000000007: hbm: 2800 GB/s, 6.7% less", text)
        self.assertNotIn("0000000000000006", text)

    def test_findings(self):
        """A later record replaces an earlier one of the same test."""
        bad = record(1, verdict="fail", findings=[{"verdict": "fail", "text": "unit 7"}], host="n1", pci="0000:1b:00.0")
        status, text = self.run_on(bad, record(2, verdict="not run", required=True, text="busy"))
        self.assertEqual(status, 1)
        self.assertIn("fail: GPU 0000000000000001 (n1 0000:1b:00.0): screen.f16: unit 7\nnot run: ", text)
        self.assertEqual(self.run_on(bad, record(1))[0], 0)

    def test_bad_input(self):
        for line in ("{", "[]", json.dumps({"op": "gemm"}), json.dumps({"op": "validate", "case": "hbm"})):
            status, text = self.run_on(record(1), line)
            self.assertEqual(status, 2)
            self.assertIn("a.jsonl:2: ", text)


if __name__ == "__main__":
    unittest.main()
