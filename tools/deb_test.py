#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the packages of tools/deb.sh in a root of their own: CAIRN_BUILD=build python3 tools/deb_test.py"""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("CAIRN_BUILD", os.path.join(TREE, "build")))


def why_not():
    if not os.path.exists(os.path.join(BUILD, "libcairn.a")):
        return f"no libcairn.a in {BUILD}"
    missing = [tool for tool in ("dpkg-deb", "dpkg-shlibdeps", "help2man", "strip") if not shutil.which(tool)]
    return f"no {', '.join(missing)}" if missing else None


def run(*args, **kwargs):
    return subprocess.run(args, capture_output=True, text=True, timeout=300, check=False, **kwargs)


@unittest.skipIf(why_not(), why_not())
class Deb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        made = run("tools/deb.sh", BUILD, cls.folder.name, cwd=TREE, env={**os.environ, "DEB_COMPRESS": "none"})
        if made.returncode:
            raise RuntimeError(made.stderr)
        cls.packages = {os.path.basename(path).split("_")[0]: path for path in made.stdout.split()}
        cls.root = os.path.join(cls.folder.name, "root")
        for package in cls.packages.values():
            subprocess.run(["dpkg-deb", "-x", package, cls.root], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def field(self, package, name):
        return run("dpkg-deb", "-f", self.packages[package], name).stdout.strip()

    def test_packages(self):
        self.assertEqual(set(self.packages), {"cairn", "libcairn1", "libcairn-dev"})
        version = self.field("cairn", "Version")
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        self.assertIn(f"libcairn1 (= {version})", self.field("libcairn-dev", "Depends"))
        # the program needs nothing that a plain Debian lacks
        self.assertEqual(re.sub(r" \([^)]*\)", "", self.field("cairn", "Depends")), "libc6")
        self.assertEqual(
            set(re.sub(r" \([^)]*\)", "", self.field("libcairn1", "Depends")).split(", ")),
            {"libc6", "libgomp1", "libjansson4", "libmd0", "libpcre2-8-0", "libutf8proc2"},
        )

    def test_each_file_is_in_one_package(self):
        """And nothing lies outside /usr, or names the tree that it was built in."""
        files = []
        for package in self.packages.values():
            listing = run("dpkg-deb", "-c", package).stdout.splitlines()
            self.assertEqual({line.split()[1] for line in listing}, {"root/root"})
            files += [line.split()[5] for line in listing if not line.split()[5].endswith("/")]
        self.assertEqual(len(files), len(set(files)))
        self.assertEqual({name.split("/")[1] for name in files}, {"usr"})
        for name in ("bin/cairn", "share/man/man1/cairn-serve.1.gz", "share/bash-completion/completions/cairn"):
            self.assertIn("./usr/" + name, files)
        with open(glob.glob(f"{self.root}/usr/lib/*/pkgconfig/cairn.pc")[0], encoding="utf-8") as f:
            self.assertNotIn(self.folder.name, f.read())

    @unittest.skipUnless(os.geteuid() == 0, "dpkg and chroot are for root")
    def test_in_a_root_of_its_own(self):
        """dpkg unpacks all three, and the program answers where there is nothing but libc and the packages."""
        admin = os.path.join(self.root, "var/lib/dpkg")
        for name in ("info", "updates", "triggers"):
            os.makedirs(os.path.join(admin, name))
        open(os.path.join(admin, "status"), "w", encoding="utf-8").close()
        done = run("dpkg", f"--root={self.root}", "--force-depends", "--force-script-chrootless", "-i", *self.packages.values())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ii", run("dpkg-query", f"--admindir={admin}", "-W", "-f", "${db:Status-Abbrev}", "cairn").stdout)
        for line in run("ldd", os.path.join(self.root, "usr/bin/cairn")).stdout.splitlines():
            library = re.search(r"(/\S+)", line)
            if library:
                target = self.root + library.group(1)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(library.group(1), target)
        os.makedirs(os.path.join(self.root, "tmp"), exist_ok=True)
        # without /proc the program cannot tell where it lies
        env = {**os.environ, "CAIRN_DATA": "/usr/share/cairn"}
        cairn = (shutil.which("chroot") or "/usr/sbin/chroot", self.root, "/usr/bin/cairn")
        done = run(*cairn, "generate", "--impl", "cpu", "--prompt", "What is 12 + 30?", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("42", done.stdout)
        done = run(*cairn, "doctor", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ok       cpu table", done.stdout)


if __name__ == "__main__":
    unittest.main()
