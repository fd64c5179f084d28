# SPDX-License-Identifier: Apache-2.0
"""`cairn serve` of the build under test on a port of its own, for tests that connect to it."""

import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("CAIRN_BUILD", os.path.join(TREE, "build")))
PROGRAM = os.path.join(BUILD, "cairn")
# a chat template for the embedded model, whose checkpoint has none
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def why_no_server():
    if not os.access(PROGRAM, os.X_OK):
        return f"no program in {BUILD}"
    run = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True, check=False)
    return None if run.returncode == 0 and "--port" in run.stdout else "this build has no command serve"


class Server:
    """A context manager: starts the server and ends it by SIGTERM. The output goes to .log."""

    def __init__(self, *options, impl="cpu", env=None, wait=120, template=True):
        self.options = options
        self.impl = impl
        self.env = {**os.environ, **(env or {})}
        self.wait = wait
        self.template = template
        self.url = None
        self.process = None
        self.status = None

    def __enter__(self):
        self.dir = tempfile.TemporaryDirectory()
        self.log = os.path.join(self.dir.name, "log")
        command = [PROGRAM, "serve", "--port", "0", *(("--impl", self.impl) if self.impl else ()), *self.options]
        if self.template:
            path = os.path.join(self.dir.name, "template.jinja")
            with open(path, "w", encoding="utf-8") as f:
                f.write(TEMPLATE)
            command += ["--chat-template", path]
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env)
        try:
            self.until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def output(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def until_ready(self):
        end = time.monotonic() + self.wait
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"serve exited with status {self.process.returncode}: {self.output()[-2000:]}")
            found = re.search(r"http://[0-9.]+:(\d+)", self.output())
            if found:
                self.url = f"http://127.0.0.1:{found[1]}"
                if self.get("/ready")[0] == 200:
                    return
            time.sleep(0.05)
        raise TimeoutError(f"serve did not become ready: {self.output()[-2000:]}")

    def get(self, path, key=None):
        """(status, text)"""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
        except OSError as e:
            return 0, str(e)

    def metric(self, name, key=None):
        """The sum of the samples of a metric."""
        text = self.get("/metrics", key)[1]
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(re.escape(name) + r"[{ ]", line)
        )

    def worker(self):
        """Process ids of the front end's child processes."""
        pid = self.process.pid
        pids = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as f:
                pids += map(int, f.read().split())
        return pids

    def stop(self, seconds=60):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.status = self.process.returncode if self.process else None
        self.dir.cleanup()

    def __exit__(self, *_):
        self.stop()
