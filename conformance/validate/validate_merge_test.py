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
        status, text = self.run_on(*(record(i, census="aa", figures={"gbps": [3000 + i] * 3, "us": []}) for i in range(8)))
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

    def test_slow_gpus(self):
        """More GB/s are better, and fewer of everything else; GPUs with other settings are no peers."""
        rows = [record(i, "hbm", figures={"gbps": [3000 + i, 3000 + i, 1]}) for i in range(8)]
        rows[7]["figures"] = {"gbps": [2800, 3000, 2800]}
        rows += [record(i, "launch", figures={"us": [5 + i / 100]}) for i in range(8)]
        rows[11]["figures"] = {"us": [6]}
        rows[12]["figures"] = {"us": [4]}
        rows.append(record(20, "launch", figures={"us": [9]}, config={"limit_w": 300}))
        status, text = self.run_on(*rows)
        self.assertEqual(status, 0)
        self.assertIn("warn: GPU 0000000000000007: hbm: gbps 2800, 6.7% worse than the 8 GPUs of this model", text)
        self.assertIn("warn: GPU 0000000000000003: launch: us 6, ", text)
        self.assertEqual(text.count("warn: "), 2)

    def test_history(self):
        """A GPU that has become slower, or whose digests have changed, is named; so few records that chance explains them say nothing."""
        times = [5, 5.01, 4.99, 5.02]
        rows = [record(1, "launch", figures={"us": [v]}) for v in times]
        self.assertEqual(self.run_on(*rows, record(1, "launch", figures={"us": [5.05]}))[1].count("warn: "), 0)
        status, text = self.run_on(*rows, record(1, "launch", figures={"us": [5.5]}))
        self.assertEqual(status, 0)
        self.assertIn("warn: GPU 0000000000000001: launch: us 5.5, 9.9% worse than in 4 earlier records\n1 GPUs, 1 tests", text)
        self.assertNotIn("warn: ", self.run_on(*rows[:3], record(1, "launch", figures={"us": [5.5]}))[1])
        self.assertNotIn("warn: ", self.run_on(*rows, record(1, "launch", figures={"us": [4.5]}))[1])
        status, text = self.run_on(record(1, census="aa"), record(1, census="aa"), record(1, census="ab"))
        self.assertEqual(status, 1)
        self.assertIn("its digests differ from those of 2 earlier records of this GPU", text)
        self.assertEqual(self.run_on(record(1, census="aa", source="x"), record(1, census="ab", source="y"))[0], 0)

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
