#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of validate_ranges.py: python3 conformance/validate/validate_ranges_test.py"""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import validate_ranges  # noqa: E402


def record(number, windows, **other):
    return {
        "v": 1,
        "op": "validate",
        "case": "copy",
        "id": f"{number:016x}",
        "node": f"{number // 2:016x}",
        "impl": "cuda",
        "gpu": "NVIDIA H100 PCIe",
        "driver": "580.1.2",
        "config": {"mem_gib": 80, "limit_w": 700, "ecc": True, "mig": False, "branch": "580"},
        "verdict": "pass",
        "findings": [],
        "figures": {"to_host_gbps": windows},
        **other,
    }


class Ranges(unittest.TestCase):
    def run_on(self, *lines):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.jsonl")
            with open(path, "w", encoding="utf-8") as f:
                f.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = validate_ranges.main(["--out", folder, path])
            found = {}
            for name in os.listdir(folder):
                if name.endswith(".json"):
                    with open(os.path.join(folder, name), encoding="utf-8") as f:
                        found[name] = json.load(f)
        return status, found, out.getvalue() + err.getvalue()

    def test_range(self):
        """Each GPU counts once, with the median of its windows and records; other rows and faults do not count."""
        rows = [record(i, [50 + i, 50 + i, 90]) for i in range(4)]
        rows += [record(3, [53]), record(9, [1], verdict="fail"), record(9, [1], impl="cpu"), {"op": "gemm"}]
        status, found, text = self.run_on(*rows)
        self.assertEqual(status, 0)
        self.assertEqual(list(found), ["nvidia_h100_pcie.json"])
        (c,) = found["nvidia_h100_pcie.json"]["configurations"]
        self.assertEqual((c["gpus"], c["nodes"], c["provisional"]), (4, 2, True))
        self.assertEqual(c["config"], {"mem_gib": 80, "limit_w": 700, "ecc": True, "mig": False, "branch": "580"})
        want = {"median": 51.5, "mad": 1.0, "low": 50.0, "high": 53.0}
        self.assertEqual(c["figures"], {"copy": {"to_host_gbps": want}})
        self.assertIn("NVIDIA H100 PCIe, driver 580: 4 GPUs of 2 nodes, 1 tests", text)

    def test_configurations(self):
        """Settings and driver branches are not mixed; what old records do not tell is null."""
        old = record(1, [1], case="rate.f16", units=[{"cycles": c} for c in (5, 7, 100)], driver="570.3")
        del old["config"], old["figures"], old["node"]
        _, found, _ = self.run_on(old, record(2, [4]), record(3, [4], config={"mem_gib": 80, "branch": "580"}))
        configurations = found["nvidia_h100_pcie.json"]["configurations"]
        self.assertEqual(len(configurations), 3)
        (c,) = [c for c in configurations if c["config"]["branch"] == "570"]
        self.assertIsNone(c["config"]["mem_gib"])
        self.assertEqual((c["gpus"], c["nodes"], c["figures"]["rate.f16"]["cycles"]["median"]), (1, 1, 7))

    def test_bad_input(self):
        for line in ("{", json.dumps({"op": "validate", "case": "hbm"})):
            status, _, text = self.run_on(record(1, [1]), line)
            self.assertEqual(status, 2)
            self.assertIn("a.jsonl:2: ", text)


if __name__ == "__main__":
    unittest.main()
