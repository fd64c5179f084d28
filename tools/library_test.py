#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what `make install` installs: library, headers, examples: CAIRN_BUILD=build python3 tools/library_test.py"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("CAIRN_BUILD", os.path.join(TREE, "build")))
LIBRARY = os.path.join(TREE, "serving", "library")
MOST_SYMBOLS = 40
# Python with NumPy or PyTorch: that of tools/setup.sh clients, else this one.
PYTHON = next((p for p in [os.path.join(BUILD, "clients", "bin", "python")] if os.path.exists(p)), sys.executable)


def why_not():
    if not os.path.exists(os.path.join(BUILD, "libcairn.a")):
        return f"no libcairn.a in {BUILD}"
    missing = [tool for tool in ("gcc", "g++", "pkg-config", "help2man") if not shutil.which(tool)]
    return f"no {', '.join(missing)}" if missing else None


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def run(*args, **kwargs):
    return subprocess.run(args, capture_output=True, text=True, timeout=300, check=False, **kwargs)


def has_module(name):
    return run(PYTHON, "-c", f"import importlib.util as u; exit(not u.find_spec('{name}'))").returncode == 0


def exports():
    return set(re.findall(r"^\t(cairn_\w+);$", read(os.path.join(LIBRARY, "exports.map")), re.M))


@unittest.skipIf(why_not(), why_not())
class Library(unittest.TestCase):
    """Everything is installed once, into a root of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = os.path.join(cls.folder.name, "root")
        made = run("tools/install.sh", BUILD, cwd=TREE, env={**os.environ, "DESTDIR": cls.root, "PREFIX": "/usr"})
        if made.returncode:
            raise RuntimeError(made.stderr)
        cls.lib = os.path.join(cls.root, "usr", "lib")
        cls.include = os.path.join(cls.root, "usr", "include", "cairn")
        cls.examples = os.path.join(cls.root, "usr", "share", "doc", "cairn", "examples")
        cls.model = os.path.join(cls.root, "usr", "share", "cairn", "serving", "embedded")
        cls.env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
        cls.env.update(PKG_CONFIG_SYSROOT_DIR=cls.root, PKG_CONFIG_PATH=os.path.join(cls.lib, "pkgconfig"))
        cls.env.update(LD_LIBRARY_PATH=cls.lib, OMP_WAIT_POLICY="passive")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def succeed(self, *args, **kwargs):
        done = run(*args, env=self.env, **kwargs)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stdout}{done.stderr}")
        return done.stdout

    def build(self, source, static):
        """The program of an example, linked by what pkg-config says"""
        out = os.path.join(self.folder.name, f"{os.path.basename(source)}.{'static' if static else 'shared'}")
        flags = self.succeed("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "cairn").split()
        if static:
            flags[flags.index("-lcairn")] = "-l:libcairn.a"
        self.succeed("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", out, source, *flags)
        return out

    def test_symbols(self):
        """Both libraries define the symbols of exports.map and no others."""
        wanted = exports()
        self.assertLessEqual(len(wanted), MOST_SYMBOLS)
        shared = re.findall(r" [TDBR] (\w+)@@CAIRN_1$", self.succeed("nm", "-D", "--defined-only", f"{self.lib}/libcairn.so.1"), re.M)
        self.assertEqual(set(shared), wanted)
        static = re.findall(r"^\w+ [A-Z] (\w+)$", self.succeed("nm", "-g", "--defined-only", f"{self.lib}/libcairn.a"), re.M)
        self.assertEqual(set(static), wanted)

    def test_needs_no_other_libraries(self):
        needed = re.findall(r"NEEDED.*\[lib([\w+-]+)", self.succeed("readelf", "-d", f"{self.lib}/libcairn.so.1"))
        self.assertLessEqual(set(needed), {"jansson", "pcre2-8", "utf8proc", "md", "gomp", "m", "c", "dl", "pthread", "rt"})
        self.assertIn("[libcairn.so.1]", self.succeed("readelf", "-d", f"{self.lib}/libcairn.so.1"))

    def abidiff(self, old, new):
        rules = os.path.join(LIBRARY, "abi.suppr")
        return run("abidiff", "--suppressions", rules, old, new)

    @unittest.skipUnless(shutil.which("abidiff") and platform.machine() == "x86_64", "no abidiff (abigail-tools)")
    def test_interface_is_the_recorded_one(self):
        """A change of the interface is seen; tools/abi.sh says what to do about it."""
        recorded, now = os.path.join(LIBRARY, "abi.xml"), os.path.join(self.folder.name, "abi.xml")
        self.succeed("tools/abi.sh", BUILD, now, cwd=TREE)
        done = self.abidiff(recorded, now)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + read(os.path.join(TREE, "tools", "abi.sh")))
        self.assertEqual(done.stderr, "")

    @unittest.skipUnless(shutil.which("abidiff"), "no abidiff (abigail-tools)")
    def test_only_tables_and_arguments_may_grow(self):
        """Only tables and arguments may have gained a last member since the record; any other new member
        breaks the interface."""
        recorded = read(os.path.join(LIBRARY, "abi.xml"))
        for struct, member, allowed in (
            ("cairn_impl", -1, True),
            ("cairn_rmsnorm_args", -1, True),
            ("cairn_impl", 20, False),
            ("cairn_engine_options", -1, False),
            ("cairn_request", -1, False),
        ):
            begin = recorded.index(f"<class-decl name='{struct}' size-in-bits=")
            end = recorded.index("</class-decl>", begin)
            body = recorded[begin:end]
            gone = list(re.finditer(r" *<data-member .*?</data-member>\n", body, re.S))[member]
            bits = int(re.search(r"size-in-bits='(\d+)'", body).group(1))
            body = body[: gone.start()] + body[gone.end() :]
            body = body.replace(f"size-in-bits='{bits}'", f"size-in-bits='{bits - 64}'", 1)
            older = os.path.join(self.folder.name, "older.xml")
            with open(older, "w", encoding="utf-8") as f:
                f.write(recorded[:begin] + body + recorded[end:])
            done = self.abidiff(older, os.path.join(LIBRARY, "abi.xml"))
            self.assertEqual(done.returncode == 0, allowed, f"{struct}: {done.stdout}{done.stderr}")

    def test_headers_compile_alone(self):
        """Each installed header, as C and as C++, without a warning"""
        headers = [
            os.path.relpath(os.path.join(folder, name), self.include)
            for folder, _, names in os.walk(self.include)
            for name in names
        ]
        self.assertIn("conformance/abi.h", headers)
        for compiler, standard, end in (("gcc", "c11", "c"), ("g++", "c++17", "cc")):
            sources = []
            for header in headers:
                sources.append(os.path.join(self.folder.name, header.replace("/", "_") + "." + end))
                with open(sources[-1], "w", encoding="utf-8") as f:
                    f.write(f"#include <{header}>\n")
            flags = ("-fsyntax-only", f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"-I{self.include}")
            self.succeed(compiler, *flags, *sources)

    def test_links_from_cpp(self):
        """Each exported function is declared, and has the linkage of C in C++."""
        source = os.path.join(self.folder.name, "all.cc")
        out = os.path.join(self.folder.name, "all")
        functions = ", ".join(f"(void *){name}" for name in sorted(exports()))
        with open(source, "w", encoding="utf-8") as f:
            f.write(f"#include <cairn.h>\nvoid *all[] = {{ {functions} }};\nint main()\n{{\n\treturn !cairn_version()[0];\n}}\n")
        self.succeed("g++", "-o", out, source, *self.succeed("pkg-config", "--cflags", "--libs", "cairn").split())
        self.succeed(out)

    def test_one_operation(self):
        """Linked either way, with equal results on both tables of the host"""
        for static in (False, True):
            program = self.build(os.path.join(self.examples, "one_operation.c"), static)
            cpu, ref = self.succeed(program, "cpu"), self.succeed(program, "ref")
            self.assertIn("\n0.1980 0.3961 0.5941 0.7921 1.9803 2.3764 2.7724 3.1685\n", cpu)
            self.assertEqual(cpu.replace("table cpu", "table ref"), ref)
            bad = run(program, "gpu", env=self.env)
            self.assertEqual((bad.returncode, bad.stdout), (1, ""))
            self.assertEqual(bad.stderr, "gpu: table: 'gpu' is none of ref, cpu, cuda\n")

    def test_generate(self):
        """The example answers as the installed program does, and says in one line what it cannot load."""
        installed = os.path.join(self.root, "usr", "bin", "cairn")
        theirs = self.succeed(installed, "generate", "--prompt", "What is 12 + 30?", "--impl", "cpu", cwd="/")
        for static in (False, True):
            program = self.build(os.path.join(self.examples, "generate.c"), static)
            ours = self.succeed(program, self.model, "What is 12 + 30?", "cpu")
            self.assertIn(ours.strip(), theirs)
            self.assertIn("42", ours)
            bad = run(program, "/no/such/model", "x", "cpu", env=self.env)
            self.assertEqual((bad.returncode, len(bad.stderr.splitlines())), (1, 1))
            self.assertIn("/no/such/model", bad.stderr)

    def test_refuses_another_version(self):
        source = os.path.join(self.folder.name, "version.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write(
                "#include <cairn.h>\n#include <stdio.h>\nint main(void)\n{\n"
                '\tif (cairn_table("cpu", CAIRN_ABI_VERSION + 1) || cairn_table(NULL, CAIRN_ABI_VERSION))\n\t\treturn 1;\n'
                '\tputs(cairn_last_error());\n\treturn cairn_table("cpu", CAIRN_ABI_VERSION) != '
                'cairn_table("cpu", CAIRN_ABI_VERSION);\n}\n'
            )
        self.assertEqual(self.succeed(self.build(source, False)), "table: its name is NULL\n")

    @unittest.skipUnless(has_module("numpy"), "no numpy (tools/setup.sh clients)")
    def test_dlpack(self):
        """Both ways without a copy; memory lives as long as its last user; what is not supported is refused."""
        self.succeed(PYTHON, "dlpack.py", cwd=self.examples)
        self.succeed(PYTHON, os.path.join(TREE, "tools", "dlpack_check.py"), self.examples)

    @unittest.skipUnless(has_module("torch"), "no torch")
    def test_torch(self):
        self.assertIn("largest error", self.succeed(PYTHON, "torch_tensors.py", cwd=self.examples))


if __name__ == "__main__":
    unittest.main()
