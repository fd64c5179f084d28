#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the built-in page in headless Chromium: CAIRN_BUILD=build python3 tools/page_test.py

First with a scripted server that sends what no model would: markup, broken streams, error responses. Then with
`cairn serve` and the embedded model. SCREENSHOTS=DIR keeps screenshots.
"""

import contextlib
import http.server
import json
import os
import re
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import chromium  # noqa: E402
import page  # noqa: E402
from server_under_test import BUILD, Server, why_no_server  # noqa: E402

HEADERS = re.findall(r'\{ "([^"]+)", "([^"]+)" \}', (page.PAGE.parent / "page.h").read_text())
PAYLOAD = "<img src=x onerror=\"document.title='XSS'\"><script>document.title='XSS'</script><b>bold</b> & &amp; 好"
NO_BROWSER = None if chromium.find() else "no chromium"
FAULT = os.path.join(BUILD, "fault_plugin.so")


def screenshot(browser, name):
    if os.environ.get("SCREENSHOTS"):
        browser.screenshot(os.path.join(os.environ["SCREENSHOTS"], name + ".png"))


class Static(unittest.TestCase):
    def setUp(self):
        self.text = page.PAGE.read_text(encoding="utf-8")

    def test_small_and_alone(self):
        self.assertLess(len(self.text.encode()), 30000)
        self.assertEqual(
            re.findall(r"https?:|src=|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")", self.text), []
        )

    def test_hashes(self):
        self.assertEqual(page.with_hashes(self.text), self.text, "run tools/page.py")

    def test_text_stays_text(self):
        unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bon[a-z]+=|style="
        self.assertEqual(re.findall(unsafe, self.text), [])


class Scripted(http.server.BaseHTTPRequestHandler):
    """A server that sends the responses set by the test in the class."""

    protocol_version = "HTTP/1.1"
    metrics, key, chunks, refusal, pause = "", None, [], None, 0.0
    asked = []

    def log_message(self, *_):
        pass

    def send(self, status, kind, data, headers=()):
        data = data.encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(data))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def refused(self):
        if Scripted.key and self.headers["Authorization"] != "Bearer " + Scripted.key:
            self.send(401, "application/json", '{"error":{"message":"no key","code":"invalid_api_key"}}')
            return True
        return False

    def do_GET(self):
        if self.path == "/":
            self.send(200, "text/html; charset=utf-8", page.PAGE.read_text(encoding="utf-8"), HEADERS)
        elif self.path == "/health":
            self.send(200, "application/json", "{}")
        elif self.refused():
            return
        elif self.path == "/metrics":
            self.send(200, "text/plain", Scripted.metrics() if callable(Scripted.metrics) else Scripted.metrics)
        else:
            self.send(200, "application/json", '{"data":[{"id":"<i>model</i>"}]}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Scripted.asked.append((self.path, body))
        if self.refused():
            return
        if Scripted.refusal and self.path.endswith("chat/completions"):
            self.send(400, "application/json", json.dumps({"error": Scripted.refusal}))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for chunk in Scripted.chunks:
                if isinstance(chunk, threading.Event):  # waits until the test sets it
                    chunk.wait(60)
                    continue
                data = chunk if isinstance(chunk, bytes) else f"data: {json.dumps(chunk)}\n\n".encode()
                self.wfile.write(data)
                time.sleep(Scripted.pause)
        except OSError:
            Scripted.asked.append(("gone", None))
        self.close_connection = True


def piece(text, **more):
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
}
DONE = b"data: [DONE]\n\n"


def metrics(out, running=0, waiting=0, kv=0.0, asked=0, found=0):
    label = '{model_name="m"}'
    return (
        f"# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total{label} {out}\n"
        f"vllm:num_requests_running{label} {running}\nvllm:num_requests_waiting{label} {waiting}\n"
        f"vllm:kv_cache_usage_perc{label} {kv}\nvllm:prefix_cache_queries_total{label} {asked}\n"
        f"vllm:prefix_cache_hits_total{label} {found}\n"
    )


@unittest.skipIf(NO_BROWSER, NO_BROWSER)
class Alone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.browser = chromium.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.shutdown()

    def setUp(self):
        Scripted.metrics, Scripted.key, Scripted.refusal, Scripted.pause = metrics(0), None, None, 0.0
        Scripted.chunks, Scripted.asked = [], []
        self.browser.problems.clear()
        self.browser.open(f"http://127.0.0.1:{self.server.server_port}/")
        self.browser.wait("$('health').textContent !== 'connecting'")

    def tearDown(self):
        self.assertEqual(self.browser.problems, [])

    def text(self, element):
        return self.browser.js(f"$('{element}').textContent")

    def say(self, text):
        self.browser.type("prompt", text)
        self.browser.key("Enter")
        self.browser.wait("stopper === null && document.querySelectorAll('.turn').length % 2 === 0")

    def last(self, what=".text"):
        return self.browser.js(f"[...document.querySelectorAll('.turn {what}')].pop()?.textContent")

    def test_markup_stays_text(self):
        middle = len(PAYLOAD) // 2
        Scripted.chunks = [piece("", role="assistant"), piece(PAYLOAD[:middle]), piece(PAYLOAD[middle:]), USAGE, DONE]
        self.say(PAYLOAD)
        self.assertEqual(self.last(), PAYLOAD)
        self.assertEqual(self.browser.js("[...document.querySelectorAll('.user .text')].pop().textContent"), PAYLOAD)
        self.assertEqual(self.browser.js("document.querySelectorAll('#log img, #log script, #log b').length"), 0)
        self.assertEqual((self.browser.js("document.title"), self.text("model")), ("Cairn", "<i>model</i>"))
        self.assertIn("5 tokens", self.last(".note"))
        self.assertIn("prompt of 9, 4 of them from the cache", self.last(".note"))
        self.assertEqual(Scripted.asked[0][1]["messages"][-1], {"role": "user", "content": PAYLOAD})

    def test_policy_holds(self):
        """Markup that got into the page would not run."""
        self.browser.js("log.innerHTML = '<img src=x onerror=\"document.title=1\">'")
        self.until_it_complains()
        self.assertEqual(self.browser.js("document.title"), "Cairn")
        self.browser.problems.clear()
        self.assertEqual(self.browser.js("fetch('http://127.0.0.2:1/').then(() => 1, () => 2)"), 2)
        self.until_it_complains()
        self.browser.problems.clear()

    def until_it_complains(self):
        end = time.monotonic() + 30
        while not any("Content Security Policy" in p for p in self.browser.problems):
            self.assertLess(time.monotonic(), end, self.browser.problems)
            self.browser.js("1")
            time.sleep(0.05)

    def test_streams(self):
        """Text is shown before the answer is complete; chunks may end inside a character."""
        data = f"data: {json.dumps(piece('好的 done'), ensure_ascii=False)}\n\n".encode()
        seen = threading.Event()
        Scripted.chunks = [piece("first"), seen, *(data[i : i + 1] for i in range(len(data))), DONE]
        Scripted.pause = 0.02
        self.browser.type("prompt", "hello")
        self.browser.key("Enter")
        self.browser.wait("[...document.querySelectorAll('.text')].pop().textContent === 'first'")
        seen.set()
        self.browser.wait("stopper === null")
        self.assertEqual(self.last(), "first好的 done")

    def test_stop(self):
        Scripted.chunks, Scripted.pause = [piece("x ")] * 5000, 0.02
        self.browser.type("prompt", "go on")
        self.browser.key("Enter")
        self.browser.wait("[...document.querySelectorAll('.text')].pop().textContent.length > 4")
        self.browser.js("$('stop').click()")
        self.browser.wait("stopper === null")
        self.assertEqual(self.last(".note"), "stopped")
        self.browser.wait("true")
        end = time.monotonic() + 30
        while ("gone", None) not in Scripted.asked and time.monotonic() < end:
            time.sleep(0.05)
        self.assertIn(("gone", None), Scripted.asked)

    def test_failures(self):
        for chunks, says in (
            ([piece("a"), {"error": {"message": "the <b>worker</b> died"}}], "the <b>worker</b> died"),
            ([piece("a")], "the answer was cut short"),
        ):
            Scripted.chunks = chunks
            self.say("question")
            self.assertEqual(self.last(".failed"), says)
            self.assertEqual(self.browser.js("$('prompt').value"), "question")
            self.browser.js("$('prompt').value = ''")
        Scripted.refusal = {"message": "too <i>many</i>", "code": None}
        self.say("question")
        self.assertEqual(self.last(".failed"), "status 400: too <i>many</i>")

    def test_plain_text_where_no_template(self):
        Scripted.refusal = {"message": "this model has no chat template", "code": "no_chat_template"}
        Scripted.chunks = [{"choices": [{"index": 0, "text": "on and on"}]}, USAGE, DONE]
        self.say("begin")
        self.assertEqual(self.last(), "on and on")
        self.assertEqual((Scripted.asked[-1][0], Scripted.asked[-1][1]["prompt"]), ("/v1/completions", "begin"))

    def test_key(self):
        Scripted.key = "s3cret"
        self.browser.wait("$('health').textContent === 'needs an API key'")
        self.browser.js("$('key').value = 's3cret'; " "$('key').dispatchEvent(new Event('change'))")
        self.browser.wait("$('health').textContent === 'ready'")
        Scripted.chunks = [piece("yes"), DONE]
        self.say("may I")
        self.assertEqual(self.last(), "yes")
        self.browser.js("sessionStorage.clear()")

    def test_numbers(self):
        self.browser.wait("$('running').textContent === '0'")
        # 10000 tokens per second, however often the page asks
        Scripted.metrics = lambda: metrics(int(time.monotonic() * 10000), 3, 2, 0.375, 400, 100)
        self.browser.wait("$('running').textContent === '3'")
        self.assertEqual([self.text(i) for i in ("waiting", "kv", "hits")], ["2", "37.5", "25.0"])
        self.browser.wait("Math.abs(Number($('rate').textContent.replace(/,/g, '')) - 10000) < 5000")
        for scheme in ("light", "dark"):
            self.browser.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            Scripted.chunks = [piece("A cairn is a pile of stones that marks a way.\n\n<b>not bold</b>"), USAGE, DONE]
            self.say("What is a cairn?")
            screenshot(self.browser, "scripted-" + scheme)

    def test_names_for_all_controls(self):
        """Every control has an accessible name."""
        tree = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        controls = [
            (n["role"]["value"], n.get("name", {}).get("value"))
            for n in tree
            if n.get("role", {}).get("value")
            in ("button", "textbox", "combobox", "spinbutton", "meter", "log", "image")
        ]
        self.assertGreater(len(controls), 5)
        self.assertEqual([c for c in controls if not c[1]], [])


@unittest.skipIf(NO_BROWSER or why_no_server(), NO_BROWSER or why_no_server())
class Served(unittest.TestCase):
    """The page with cairn serve and the embedded model."""

    def test_page_of_the_server(self):
        with contextlib.ExitStack() as stack:
            # slow the model down until the test has seen an incomplete answer
            pace = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "pace")
            Path(pace).write_text("slow 20", encoding="ascii")
            server = stack.enter_context(Server(impl=FAULT, env={"CAIRN_FAULT": pace}))
            browser = stack.enter_context(chromium.Browser())
            browser.open(server.url + "/")
            browser.wait("$('health').textContent === 'ready'", 60)
            # the model would end its answer early, and the page has no option against it
            browser.js(
                "window.plain = window.fetch; window.fetch = (url, o) => plain(url, o && o.body ? "
                "{ ...o, body: JSON.stringify({ ...JSON.parse(o.body), ignore_eos: true, max_tokens: 1200 }) } : o)"
            )
            asked = PAYLOAD + "\nWhat is 55 - 8?\n"
            browser.type("prompt", asked)
            browser.key("Enter")
            browser.wait("[...document.querySelectorAll('.text')].pop().textContent.length > 2", 60)
            self.assertTrue(browser.js("stopper !== null"), "the whole answer came at once")
            browser.wait("poll().then(() => Number($('rate').textContent.replace(/,/g, '')) > 0)", 60)
            self.assertEqual((browser.js("$('running').textContent"), browser.js("stopper !== null")), ("1", True))
            screenshot(browser, "served")
            Path(pace).write_text("slow 0", encoding="ascii")
            browser.wait("stopper === null", 60)
            self.assertEqual(browser.js("document.querySelectorAll('.failed').length"), 0)
            self.assertIn("prompt of", browser.js("[...document.querySelectorAll('.note')].pop().textContent"))
            self.assertEqual(browser.js("document.querySelector('.user .text').textContent"), asked)
            self.assertEqual((browser.js("document.title"), browser.problems), ("Cairn", []))


if __name__ == "__main__":
    unittest.main()
