#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `cairn serve` with a third-party load generator: CAIRN_BUILD=build python3 tools/servebench_test.py

servebench is looked up in PATH and in BUILD/clients (made by tools/setup.sh clients BUILD); without it the test is
skipped.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_under_test import BUILD, TREE, Server, why_no_server  # noqa: E402

SERVEBENCH = shutil.which("servebench") or shutil.which("servebench", path=os.path.join(BUILD, "clients", "bin"))
NO_SERVER = why_no_server()


@unittest.skipIf(NO_SERVER, NO_SERVER)
@unittest.skipIf(not SERVEBENCH, "no servebench")
class LoadGenerator(unittest.TestCase):
    def test_servebench(self):
        with Server("--quiet") as server:
            prompts = os.path.join(TREE, "serving", "embedded", "eval.jsonl")
            for endpoint, load in (("completions", ("--concurrency", "1,8")), ("chat", ("--rate", "20"))):
                out = os.path.join(server.dir.name, endpoint + ".json")
                run = subprocess.run(
                    [
                        SERVEBENCH,
                        "run",
                        "--url",
                        server.url + "/v1",
                        "--model",
                        "embedded",
                        "--endpoint",
                        endpoint,
                        *load,
                        "--num-requests",
                        "24",
                        "--prompts",
                        prompts,
                        "--output-len",
                        "24",
                        "--no-gpu",
                        "--out",
                        out,
                    ],
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                    cwd=server.dir.name,
                    env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "HOME": server.dir.name},
                )
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                with open(out, encoding="utf-8") as f:
                    levels = json.load(f)["levels"]
                for level in levels:
                    self.assertEqual((level["summary"]["completed"], level["summary"]["failed"]), (24, 0))
                    self.assertEqual({r["output_tokens"] for r in level["requests"]}, {24})
                    self.assertEqual({r["token_source"] for r in level["requests"]}, {"usage"})


if __name__ == "__main__":
    unittest.main()
