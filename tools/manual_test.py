#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that --help, the manual and the shells' completion name the same options: CAIRN_BUILD=build python3 tools/manual_test.py"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("CAIRN_BUILD", os.path.join(TREE, "build")))
PROGRAM = os.path.join(BUILD, "cairn")
COMPLETION = os.path.join(TREE, "tools", "completion")


def run(*args, **kwargs):
    return subprocess.run(args, capture_output=True, text=True, timeout=120, check=False, **kwargs)


def commands():
    """The commands for users, as lists of words"""
    return [line.split("\t")[0].split() for line in run(PROGRAM, "--help=commands").stdout.splitlines()]


def table(command):
    """name: (argument, values), what getopt's table of the command has"""
    rows = [line.split("\t") for line in run(PROGRAM, *command, "--help=options").stdout.splitlines()]
    return {name: (takes, values.split()) for name, takes, values in rows}


def described(text):
    """The options that begin an indented line of --help, also after others: "  --top-k N  --top-p X" """
    found = set()
    for line in text.splitlines():
        if re.match(r"  +(-\w, )?--[a-z]", line) and not line.startswith(" " * 12):
            head = re.match(r"  +((-\w, )?--[a-z][a-z0-9-]*(\[=\w+\]|[ =][^ ]+)?(,? +(?=--))?)+", line).group(0)
            found |= set(re.findall(r"--([a-z][a-z0-9-]*)", head))
    return found


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), f"no program in {BUILD}")
class Manual(unittest.TestCase):
    def setUp(self):
        self.maxDiff = None

    def test_help_describes_the_table(self):
        """Each option that is parsed is described, and each described one is parsed."""
        for command in commands():
            if command == ["version"]:
                continue
            with self.subTest(command):
                text = run(PROGRAM, *command, "--help").stdout
                options = set(table(command)) - {"help"}
                self.assertTrue(text.startswith(f"usage: cairn {' '.join(command)}"), text[:80])
                self.assertEqual({o for o in options if not re.search(rf"--{o}\b(?!-)", text)}, set())
                self.assertEqual(described(text) - options, set())

    def test_help_refuses_other_words(self):
        for command in (["check"], ["serve"], ["doctor"]):
            bad = run(PROGRAM, *command, "--help=everything")
            self.assertEqual((bad.returncode, len(bad.stderr.splitlines())), (2, 1))
            self.assertIn("--help: 'everything'", bad.stderr)

    @unittest.skipUnless(shutil.which("help2man"), "no help2man")
    def test_manual(self):
        """One page for each command with options, in which all of them stand"""
        with tempfile.TemporaryDirectory() as folder:
            done = run(os.path.join(TREE, "tools", "manual.sh"), PROGRAM, folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            pages = {f"cairn-{'-'.join(command)}.1" for command in commands() if command != ["version"]}
            self.assertEqual(set(os.listdir(folder)), pages | {"cairn.1"})
            for command in commands():
                if command == ["version"]:
                    continue
                with open(os.path.join(folder, f"cairn-{'-'.join(command)}.1"), encoding="utf-8") as f:
                    page = f.read().replace("\\-", "-").replace("\\fR", "").replace("\\fB", "")
                missing = {o for o in set(table(command)) - {"help"} if not re.search(rf"--{o}\b(?!-)", page)}
                self.assertEqual(missing, set(), command)
            if shutil.which("man"):
                shown = run("man", "--warnings", "-l", os.path.join(folder, "cairn-serve.1"), env={**os.environ, "LANG": "C"})
                self.assertEqual((shown.returncode, shown.stderr), (0, ""))
                self.assertIn("--max-queued-tokens N", shown.stdout)

    def complete(self, *words):
        """What bash offers for the last of these words"""
        script = (
            f'. "{COMPLETION}/cairn"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cairn; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        done = run("bash", "-c", script, "bash", PROGRAM, *words)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    @unittest.skipUnless(shutil.which("bash"), "no bash")
    def test_bash(self):
        self.assertEqual(self.complete(""), {command[0] for command in commands()})
        self.assertEqual(self.complete("gen"), {"generate"})
        for command in commands():
            if command != ["version"]:
                with self.subTest(command):
                    self.assertEqual(self.complete(*command, "--"), {"--" + o for o in table(command)})
        self.assertEqual(self.complete("bench", ""), {"serve"})
        self.assertEqual(self.complete("serve", "--max-q"), {"--max-queued", "--max-queued-tokens"})
        self.assertEqual(self.complete("generate", "--kv", ""), {"plain", "fp8"})
        self.assertEqual(self.complete("generate", "--kv", "=", "f"), {"fp8"})
        self.assertEqual(self.complete("generate", "--model", TREE + "/serv"), {TREE + "/serving"})

    @unittest.skipUnless(shutil.which("zsh"), "no zsh")
    def test_zsh(self):
        """zsh's own functions cannot run without a terminal: stand-ins print what they are given."""
        script = f"""
            compadd() {{ print -- $@ }}
            _describe() {{ print -l ${{(P)2}} }}
            _arguments() {{ print -l $words -- $CURRENT -- $@ }}
            words=({PROGRAM} "$@"); CURRENT=$#words
            . {COMPLETION}/_cairn
        """
        offered = run("zsh", "-fc", script, "zsh", "").stdout.splitlines()
        self.assertEqual({line.split(":")[0] for line in offered}, {command[0] for command in commands()})
        self.assertEqual(run("zsh", "-fc", script, "zsh", "bench", "").stdout.splitlines()[0], "serve")
        for command in (["serve"], ["bench", "serve"], ["check"], ["doctor"]):
            done = run("zsh", "-fc", script, "zsh", *command, "--")
            self.assertEqual(done.stderr, "")
            offered = set(re.findall(r"^\*?--([a-z0-9-]+)", done.stdout, re.M))
            self.assertEqual(offered, set(table(command)), done.stdout)
        self.assertIn("*--kv=:kv:(plain fp8)", run("zsh", "-fc", script, "zsh", "serve", "--").stdout.splitlines())


if __name__ == "__main__":
    unittest.main()
