#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of conformance/README.md as a vendor types them: CAIRN_BUILD=build python3 tools/readme_snippet_test.py

Commands whose comment says "needs a GPU" are left out by name where there is none.
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("CAIRN_BUILD", os.path.join(ROOT, "build")))
README = os.path.join(ROOT, "conformance", "README.md")
HEADING = "## Run it on your own kernels"


def commands():
    """The lines of the first shell snippet below the heading, each with its comment."""
    with open(README, encoding="utf-8") as f:
        text = f.read()
    snippet = text.split(HEADING, 1)[1].split("```sh\n", 1)[1].split("```", 1)[0]
    return [line.partition(" #")[::2] for line in snippet.splitlines() if line.strip()]


def have_gpu():
    return shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip()


class Snippet(unittest.TestCase):
    def setUp(self):
        for program in ("gcc", os.path.join(BUILD, "cairn")):
            if not shutil.which(program):
                self.skipTest(f"there is no {program}")
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        for folder in ("conformance", "primitives", "fused"):  # folders that the commands need
            os.symlink(os.path.join(ROOT, folder), os.path.join(self.dir, folder))

    def test_every_command_succeeds(self):
        env = dict(os.environ, PATH=BUILD + os.pathsep + os.environ["PATH"])
        lines, outputs = commands(), {}
        self.assertGreater(len(lines), 4)
        for command, comment in lines:
            with self.subTest(command=command):
                if "needs a GPU" in comment and not have_gpu():
                    self.skipTest("needs a GPU")
                few = " --drawn 20" if command.startswith("cairn check") else ""  # of hundreds
                done = subprocess.run(command + few, shell=True, cwd=self.dir, env=env, timeout=300, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                outputs[command.strip()] = done.stdout
                self.assertEqual(done.returncode, 0, done.stdout[-2000:])
        texts = [out for command, out in outputs.items() if command.startswith("cairn check")]
        self.assertGreater(len(texts), 2)
        for out in texts:
            passed, failed = out.split("\n")[-2].split(",")[:2]
            self.assertGreater(int(passed.split()[0]), 50, out[-2000:])
            self.assertEqual(failed.strip(), "0 failed")
        with open(os.path.join(self.dir, "verdict.jsonl"), encoding="utf-8") as f:
            verdicts = [json.loads(line)["verdict"] for line in f]
        self.assertGreater(verdicts.count("pass"), 50)


if __name__ == "__main__":
    unittest.main()
