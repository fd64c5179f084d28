# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium controlled through its debugging pipe; it can connect only to 127.0.0.1."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for path in map(shutil.which, (os.environ.get("CHROMIUM", ""), *NAMES)) if path), None)


def high_pipe():
    """A pipe whose descriptors are above those that the browser expects for its own pipe."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in low)
    for fd in low:
        os.close(fd)
    return high


class Browser:
    """One browser with one page; a context manager."""

    def __init__(self, width=1100, height=800):
        self.dir = tempfile.TemporaryDirectory()
        self.write_fd, to_read = high_pipe()[::-1]
        self.read_fd, to_write = high_pipe()
        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.dir.name}",
            "--no-sandbox",  # the tests may run as root, and open only our own page
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        # the browser expects its ends of the pipes as descriptors 3 and 4
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write} {to_read}<&- {to_write}>&-'
        self.process = subprocess.Popen(
            ["bash", "-c", script, find(), *flags],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.buffer = b""
        self.next_id = 0
        self.problems = []  # reports of the page: exceptions, violations of its policy
        self.session = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(domain + ".enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        os.close(self.write_fd)  # terminates the browser
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read_fd)
        try:
            self.dir.cleanup()
        except OSError:
            time.sleep(1)  # its child processes write until the end
            shutil.rmtree(self.dir.name, ignore_errors=True)

    def message(self, timeout):
        end = time.monotonic() + timeout
        while b"\0" not in self.buffer:
            if not select.select([self.read_fd], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not respond")
            got = os.read(self.read_fd, 1 << 20)
            if not got:
                raise RuntimeError("the browser has exited")
            self.buffer += got
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, timeout=60, **params):
        self.next_id += 1
        request = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.write_fd, data) :]
        while True:
            answer = self.message(timeout)
            if answer.get("id") == self.next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.notice(answer)

    def notice(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["source"] == "security":
            self.problems.append(params["entry"]["text"])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression):
        """Evaluates an expression in the page, awaits it and returns its value."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, expression, seconds=30):
        end = time.monotonic() + seconds
        while not self.js(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never so: {expression}")
            time.sleep(0.05)

    def type(self, element, text):
        self.js(f"document.getElementById({json.dumps(element)}).focus()")
        self.call("Input.insertText", text=text)

    def key(self, key):
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}
        code, text = codes[key]
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def screenshot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
