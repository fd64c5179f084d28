#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the archive of tools/package.sh works elsewhere: CAIRN_BUILD=build python3 tools/package_test.py"""

import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("CAIRN_BUILD", os.path.join(TREE, "build")))


def why_not():
    program = os.path.join(BUILD, "cairn")
    if not os.access(program, os.X_OK):
        return f"no program in {BUILD}"
    needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return "a program built with sanitizers is not packed" if "libasan" in needs else None


@unittest.skipIf(why_not(), why_not())
class Package(unittest.TestCase):
    """The package is made once for all tests, from the build folder with another program in it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        where, build = (os.path.join(cls.folder.name, name) for name in ("made", "build"))
        os.mkdir(where)
        os.mkdir(build)
        for name in os.listdir(BUILD):
            os.symlink(os.path.join(BUILD, name), os.path.join(build, name))
        os.symlink(os.path.join(BUILD, "cairn"), os.path.join(build, "cairn_of_before"))
        run = subprocess.run(
            ["tools/package.sh", build, where],
            cwd=TREE,
            env=dict(os.environ, PACKAGE_LEVEL="1"),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if run.returncode:
            raise RuntimeError(run.stderr)
        cls.archive = run.stdout.split()[-1]
        with tarfile.open(cls.archive) as tar:
            tar.extractall(cls.folder.name)
        cls.dir = os.path.join(cls.folder.name, os.path.basename(cls.archive).removesuffix(".tar.gz"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, *args):
        """(status, output) of `cairn check` in the package, with no path of the source tree in its environment"""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CAIRN_", "LD_"))}
        run = subprocess.run(
            [os.path.join(self.dir, "cairn"), "check", "-v", *args],
            cwd="/",
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return run.returncode, run.stdout + run.stderr

    def test_takes_all_programs_and_no_other_file(self):
        with open(os.path.join(BUILD, "programs"), encoding="ascii") as names:
            built = {name for name in names.read().split() if os.access(os.path.join(BUILD, name), os.X_OK)}
        self.assertIn("cairn", built)
        taken = {entry.name for entry in os.scandir(self.dir) if entry.is_file()}
        self.assertEqual(taken, built | {"LICENSE", "README.md"})

    def test_a_plain_family(self):
        status, out = self.check("conformance.plugin.example_passes", "primitives.embedding.rows1_*", "--impl", "cpu")
        self.assertEqual(status, 0, out)
        self.assertIn(" 0 failed", out)

    @unittest.skipUnless(shutil.which("gcc"), "no gcc")
    def test_a_plug_in_builds_against_it(self):
        so = os.path.join(self.folder.name, "example.so")
        source = os.path.join(self.dir, "conformance", "plugins", "example_plugin.c")
        run = subprocess.run(
            ["gcc", "-I", self.dir, "-shared", "-fPIC", "-o", so, source], capture_output=True, text=True, check=False
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        status, out = self.check("--impl", so, "--drawn", "20", "primitives.embedding")
        self.assertEqual(status, 0, out)

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "nic_semantics")), "built without libibverbs")
    def test_programs_on_the_nic_model(self):
        """No test may be skipped because the package lacks a program or file."""
        wanted = ("nic.semantics_plain", "nic.arming", "golden.other_seeds", "card.names")
        status, out = self.check(*(f"rdma.{name}" for name in wanted))
        self.assertEqual(status, 0, out)
        self.assertIn("\n4 passed, 0 failed, 0 skipped", out)

    def test_files_of_the_guest(self):
        for name in ("rxe_guest.sh", "rxe_init.sh", "rxe_image.py", "nic_semantics_rxe.txt", "nic_semantics.txt"):
            self.assertTrue(os.path.exists(os.path.join(self.dir, "rdma", "nic", name)), name)
        status, out = self.check("rdma.rxe.comparison_can_fail")
        self.assertEqual(status, 0, out)


if __name__ == "__main__":
    unittest.main()
