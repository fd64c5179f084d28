#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the built-in page in headless Chromium: CAIRN_BUILD=build python3 tools/page_test.py

The first tests use a scripted server that sends what no model would: markup, broken streams, error responses, and
Markdown made to freeze the page. The last ones use `cairn serve` and the embedded model. SCREENSHOTS=DIR keeps
screenshots.
"""

import contextlib
import http.server
import json
import os
import random
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
        self.source = page.PAGE.read_text(encoding="utf-8")
        self.text = page.whole(self.source)

    def test_small_and_alone(self):
        self.assertLess(len(self.text.encode()), 45000)
        self.assertEqual(
            re.findall(r"https?:|src=|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")", self.text), []
        )

    def test_hashes(self):
        self.assertEqual(page.with_hashes(self.source), self.source, "run tools/page.py")

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
            self.send(200, "text/html; charset=utf-8", page.whole(page.PAGE.read_text(encoding="utf-8")), HEADERS)
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

# Renders the sources in turn, each of which is a prefix of the next, and returns the element that holds the result.
DRAWN = (
    "const drawn = (sources) => { const root = document.createElement('div'), view = new Markdown(root);"
    "for (const s of sources) view.draw(s); return root; };"
)
ATTRIBUTES = {"class", "tabindex", "aria-label", "type", "href", "title", "rel", "target", "role", "start"}
MARKDOWN = {
    "a\nb\n\nc": "<p>a\nb</p><p>c</p>",
    "# a #\n###### b": "<h3>a</h3><h6>b</h6>",
    "#a": "<p>#a</p>",
    "a\n***\nb": "<p>a</p><hr><p>b</p>",
    "**a** *b* __c__ _d_ ~~e~~": "<p><strong>a</strong> <em>b</em> <strong>c</strong> <em>d</em> <del>e</del></p>",
    "***a*** **a *b*** *a **b***": "<p><em><strong>a</strong></em> <strong>a <em>b</em></strong> "
    "<em>a <strong>b</strong></em></p>",
    "2 * 3 * 4 snake_case_name **a": "<p>2 * 3 * 4 snake_case_name **a</p>",
    "**a *b** c*": "<p><strong>a *b</strong> c*</p>",
    r"\*a\* \a \\": r"<p>*a* \a \</p>",
    "`a*b*` `` ` `` `a": "<p><code>a*b*</code> <code>`</code> `a</p>",
    "> a\n> > b\n\nc": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>",
    "- a\n- b\n  - c\n\n    d\n\n- e\n\nf": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p><p>d</p></li></ul></li>"
    "<li><p>e</p></li></ul><p>f</p>",
    "a\n3. b\n\n3. a\n   - b\n4. c": '<p>a\n3. b</p><ol start="3"><li><p>a</p><ul><li><p>b</p></li></ul></li>'
    "<li><p>c</p></li></ol>",
    "a\n- b\n* c": "<p>a</p><ul><li><p>b</p></li></ul><ul><li><p>c</p></li></ul>",
    r"|a|*b*|" "\n" r"|:-:|--:|" "\n" r"|c\|d|`e`|f|" "\n\ng": '<div class="scroll" tabindex="0" role="group" '
    'aria-label="table"><table><tr><th class="middle">a</th><th class="right"><em>b</em></th></tr><tr>'
    '<td class="middle">c|d</td><td class="right"><code>e</code></td></tr></table></div><p>g</p>',
    "a|b\nc": "<p>a|b\nc</p>",
    "<b>&amp;": "<p>&lt;b&gt;&amp;amp;</p>",
}
WORDS = [
    *"a b c d ` ` * ** _ ~~ # > - | [ ] ( ) ! : \\ 1. 2) ``` ~~~ --- |-| |a|b| :-: http://a.b [a](http://b.c)".split(),
    *["\n"] * 12,
    *[" "] * 8,
    "\n\n",
    "  ",
    "    ",
    "\t",
    "\r\n",
    "> ",
    "- ",
    "1. ",
    "# ",
    "\n- ",
    "\n  - ",
    "\n```\n",
    "|a|b|\n|-|-|\n",
]
# Input that is hard to parse. A single text is repeated to a megabyte. For a pair, line n repeats the first text
# n times, and the second text separates the lines.
HOSTILE = {
    "line": "x",
    "words": "word ",
    "ticks": "`",
    "tick runs": ["`", " "],
    "tick lines": ["`", "\n"],
    "ticks apart": "` `` ",
    "stars": "*",
    "openers": "*a ",
    "strong openers": "**a _b ~~c ",
    "closers": "a* ",
    "mixed": "*a_ **b* ",
    "bold": "**a** ",
    "brackets": "[",
    "bracket pairs": "[]",
    "bracket and paren": "[](",
    "links": "[a](http://b.c)",
    "nested links": "[[a](",
    "link ends": "](http://a",
    "images": "![",
    "backslashes": "\\",
    "escaped pipes": "\\|",
    "angles": "<",
    "parens": "(",
    "addresses": "http://",
    "address ends": "http://a.b)*",
    "quotes": "> ",
    "quote lines": [">", "\n"],
    "bullets": "- ",
    "bullet lines": "- a\n",
    "nested bullets": ["  ", "- a\n"],
    "deep bullets": ["- ", "\n"],
    "numbers": "1. ",
    "newlines": "\n",
    "paragraphs": "a\n\n",
    "spaces": " ",
    "tabs": "\t",
    "hashes": "#",
    "spaced hashes": "# ",
    "headings": "# a\n",
    "rules": "---\n",
    "broken rules": "- - - - x",
    "pipes": "|",
    "pipe lines": "|\n",
    "tables": "a|b\n-|-\n",
    "rows": "|a|b|\n|-|-|\n|c|d|\n",
    "wrong tables": "a|b|c\n-|-\n",
    "fences": "```\n",
    "tildes": "~",
    "dashes and spaces": ["- ", "x\n"],
    "blank list": "- \n\n",
}


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
        cls.server.handle_error = lambda *_: None  # a reload resets connections
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
        self.open()
        self.browser.js("localStorage.clear(); sessionStorage.clear()")
        self.open()

    def open(self):
        self.browser.js("window.stale = true")
        self.browser.open(f"http://127.0.0.1:{self.server.server_port}/")
        self.browser.wait("window.stale !== true && $('health').textContent !== 'connecting'")

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
        self.browser.js("$('key').value = 's3cret'; $('key').dispatchEvent(new Event('change'))")
        self.browser.wait("$('health').textContent === 'ready'")
        Scripted.chunks = [piece("yes"), DONE]
        self.say("may I")
        self.assertEqual(self.last(), "yes")
        self.open()
        self.assertEqual(self.browser.js("$('key').value"), "s3cret")
        self.assertEqual(self.browser.js("JSON.stringify(localStorage).includes('s3cret')"), False)

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

    def html(self, source):
        """The markup that the page makes of Markdown, as the browser serializes it."""
        return self.browser.js(f"(() => {{ {DRAWN} return drawn([{json.dumps(source)}]).innerHTML; }})()")

    def test_markdown(self):
        for source, made in MARKDOWN.items():
            with self.subTest(source):
                self.assertEqual(self.html(source), made)

    def test_code(self):
        made = self.html("```c\nint *x;\n\n  y;\n```\nafter")
        self.assertIn("<code>int *x;\n\n  y;</code></pre></div><p>after</p>", made)
        self.assertIn("<span>c</span>", made)
        self.assertIn("<code>a\nb</code>", self.html("~~~\na\nb"))  # not ended
        self.assertIn("<code>```\nb</code>", self.html("````\n```\nb\n````"))
        self.assertIn("<li><p>a</p><div", self.html("- a\n  ```\n  b\n  ```"))

    def test_links(self):
        """Only http and https, with an address of moderate length, become links; nothing else does."""
        made = self.html('[*a*](http://b.c/d_(e) "t") ![i](HTTPS://b.c)')
        self.assertEqual(made.count("<a "), 2)
        for part in ("<em>a</em></a>", 'href="http://b.c/d_(e)"', 'href="https://b.c/"', 'rel="noopener noreferrer"'):
            self.assertIn(part, made)
        self.assertIn('href="http://b.c/d"', self.html("see (http://b.c/d)."))
        for bad in ("javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "//b.c", "/v1", "vbscript:x"):
            for source in (f"[a]({bad})", f"[a](<{bad}>)", f"![a]({bad})", f"<{bad}>", f"[a][1]\n\n[1]: {bad}"):
                self.assertNotIn("<a ", self.html(source))
        self.assertNotIn("<a ", self.html("[a](java\tscript:alert(1)) [b](http://b.c/" + "x" * 3000 + ")"))

    def test_hostile_markup(self):
        """Markup within Markdown stays text, wherever it stands."""
        bad = "<img src=x onerror=document.title=1><style>*{display:none}</style><a href=x style=color:red>"
        forms = "{0}", "# {0}", "- {0}", "> {0}", "**{0}**", "`{0}`", "```{0}\n{0}\n```", "|{0}|b|\n|-|-|\n|{0}|c|"
        for source in (f.format(bad) for f in (*forms, "[{0}](http://b.c/{0})", '[a](http://b.c/"onclick=alert(1))')):
            made = self.browser.js(
                f"(() => {{ {DRAWN} const root = drawn([{json.dumps(source)}]); document.body.append(root);"
                "const all = [...root.querySelectorAll('*')]; root.remove(); return [all.map((e) => e.localName), "
                "all.flatMap((e) => e.getAttributeNames()), root.textContent]; })()"
            )
            self.assertFalse({"img", "style", "script"} & set(made[0]), source)
            self.assertLessEqual(set(made[1]), ATTRIBUTES, source)
            self.assertIn("<" if "<" in source else "onclick", made[2])

    def test_parts_make_the_whole(self):
        """An answer looks the same whether it came at once or character by character."""
        rng = random.Random(20)
        for _ in range(150):
            source = "".join(rng.choice(WORDS) for _ in range(rng.randrange(60)))
            parts = [source[:i] for i in range(1, len(source))] + [source]
            differ = self.browser.js(
                f"(() => {{ {DRAWN} const source = {json.dumps(source)}; const whole = drawn([source]).innerHTML; "
                f"return drawn({json.dumps(parts)}).innerHTML === whole ? '' : whole; }})()"
            )
            self.assertEqual(differ, "", source)

    def test_final_blocks_stay(self):
        """Finished blocks are not rendered again: their elements stay the same objects."""
        self.assertTrue(
            self.browser.js(
                f"(() => {{ {DRAWN} const root = document.createElement('div'), view = new Markdown(root);"
                "let s = 'one';"
                "view.draw(s); s += '\\n\\n# two\\n\\nthree'; view.draw(s += '\\n'); const first = root.firstChild;"
                "view.draw(s += 'four'); return first === root.firstChild && root.childNodes.length === 3; })()"
            )
        )

    def test_time_is_linear(self):
        """A megabyte that would slow a careless parser, or make a deep tree or many lines, is shown within seconds."""
        for name, unit in HOSTILE.items():
            with self.subTest(name):
                parse, layout, elements, depth = self.browser.js(
                    f"(() => {{ {DRAWN} const unit = {json.dumps(unit)}; const source = typeof unit === 'string' ?"
                    "unit.repeat(1e6 / unit.length) :"
                    "Array.from({ length: 1400 }, (_, n) => unit[0].repeat(n + 1)).join(unit[1]);"
                    "const begun = performance.now(), root = drawn([source]), parsed = performance.now();"
                    "root.className = 'text'; $('log').append(root); root.getBoundingClientRect(); "
                    "const laid = performance.now(); root.remove(); let depth = 0;"
                    "for (const e of root.querySelectorAll('*')) { let n = 0;"
                    "for (let p = e; p !== root; p = p.parentNode) n++; depth = Math.max(depth, n); }"
                    "return [parsed - begun, laid - parsed, root.querySelectorAll('*').length, depth]; })()"
                )
                self.assertLess(parse, 3000)
                self.assertLess(layout, 3000)
                self.assertLess(elements, 5100)
                self.assertLess(depth, 40)

    def test_alive_under_a_flood(self):
        """The page stays responsive while a long line streams in, and afterwards."""
        Scripted.chunks = [*[piece("**a** `b` [c](http://d.e) " * 40)] * 1000, USAGE, DONE]
        self.browser.js(
            "window.worst = 0; let at = performance.now(); window.timer = setInterval(() => { const now = "
            "performance.now(); worst = Math.max(worst, now - at); at = now; }, 10); 0"
        )
        self.say("flood")
        self.assertEqual(self.browser.js("turns[1].content.length"), 1040000)
        self.assertLess(self.browser.js("clearInterval(timer), worst"), 3000)
        self.assertIn("too long to be shown", self.last(".text .note"))
        Scripted.chunks = [{"choices": [{"index": 0, "delta": {"reasoning_content": "a\n" * 2000}}]}] * 200
        Scripted.chunks += [piece("so"), DONE]
        self.say("think")
        self.assertEqual(self.last(), "so")
        self.assertLess(len(self.last(".thought")), 20001)

    def test_kept(self):
        """A reload keeps the conversation and the settings, and the next request sends what was restored."""
        Scripted.chunks = [piece("**one**"), USAGE, DONE]
        self.say("first")
        self.browser.js(
            "$('system').value = 'be kind'; $('temperature').value = '0.3';"
            "$('system').dispatchEvent(new Event('change'))"
        )
        self.open()
        self.assertEqual(self.texts(), ["first", "one"])
        self.assertEqual(self.browser.js("document.querySelectorAll('.assistant strong').length"), 1)
        self.assertEqual(self.browser.js("$('hint').hidden"), True)
        self.say("second")
        said = [("system", "be kind"), ("user", "first"), ("assistant", "**one**"), ("user", "second")]
        asked = Scripted.asked[-1][1]
        self.assertEqual([(m["role"], m["content"]) for m in asked["messages"]], said)
        self.assertEqual(asked["temperature"], 0.3)
        self.browser.js("$('clear').click()")
        self.assertEqual(self.texts(), [])
        self.open()
        self.assertEqual((self.texts(), self.browser.js("$('hint').hidden")), ([], False))

    def texts(self):
        return self.browser.js("[...document.querySelectorAll('.turn .text')].map((e) => e.textContent)")

    def test_kept_while_it_streams(self):
        seen = threading.Event()
        Scripted.chunks = [piece("half"), seen]
        self.browser.type("prompt", "question")
        self.browser.key("Enter")
        self.browser.wait("turns.length === 2 && turns[1].content === 'half'")
        self.open()
        seen.set()
        self.assertEqual(self.texts(), ["question", "half"])
        # a message without an answer goes back to the input
        Scripted.refusal = {"message": "no", "code": None}
        self.browser.js("send('again')")
        self.browser.wait("document.querySelector('.failed') !== null")
        self.open()
        self.assertEqual((self.texts(), self.browser.js("$('prompt').value")), (["question", "half"], "again"))

    def test_bounded(self):
        """Storage is bounded: only the newest turns are stored."""
        Scripted.chunks = [piece("x" * 190000), DONE]
        for n in range(3):
            self.say(f"question {n}")
        self.assertLess(self.browser.js("localStorage.getItem('cairn-turns').length"), 510000)
        self.open()
        self.assertEqual([t[:10] for t in self.texts()], ["question 1", "x" * 10, "question 2", "x" * 10])
        self.browser.js("for (let i = 0; i < 500; i++) add(i % 2 ? 'assistant' : 'user', 'n' + i); save()")
        self.open()
        self.assertEqual(self.browser.js("[turns.length, turns[0].role, turns.pop().content]"), [400, "user", "n499"])

    def test_junk_in_storage(self):
        junk = [
            "",
            "{",
            "null",
            "7",
            '"x"',
            "[]",
            "[null]",
            '[{"role":"system","content":"x"}]',
            "[[[]]]",
            '[{"role":"user","content":7}]',
            '[{"role":"assistant","content":"x"}]',
            '{"length":3}',
            '[{"role":"user","content":"<b>x"},{"role":"user","content":"x"}]',
        ]
        fields = [*junk[:6], '{"kind":"evil","temperature":"1e9","tokens":"x","system":7}', '{"tokens":"-5"}']
        for n, bad in enumerate(junk):
            self.browser.js(
                "window.addEventListener('pagehide', () => { "
                f"localStorage.setItem('cairn-turns', {json.dumps(bad)}); sessionStorage.setItem('cairn-key', '{{');"
                f"localStorage.setItem('cairn-settings', {json.dumps(fields[n % len(fields)])}); }})"
            )
            self.open()
            self.assertEqual(self.texts(), [])
            values = self.browser.js("['kind', 'temperature', 'tokens', 'system', 'key'].map((i) => $(i).value)")
            self.assertEqual(values, ["chat", "0.7", "512", "", ""])
        self.check_it_works()

    def check_it_works(self):
        Scripted.chunks = [piece("yes"), DONE]
        self.say("works")
        self.assertEqual(self.last(), "yes")

    def test_no_storage(self):
        for broken in (
            "get() { throw new Error('forbidden'); }",
            "value: null",
            "value: { getItem: () => null, setItem() { throw new Error('full'); } }",
        ):
            script = "for (const s of ['localStorage', 'sessionStorage']) "
            script += f"Object.defineProperty(window, s, {{ {broken} }})"
            name = self.browser.call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
            try:
                self.open()
                self.check_it_works()
                self.browser.js("$('tokens').dispatchEvent(new Event('change')); $('clear').click()")
                self.assertEqual(self.texts(), [])
            finally:
                self.browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=name)

    def click(self, name, nth=-1):
        """Clicks a visible button by its accessible name."""
        self.browser.js(
            f"[...document.querySelectorAll('button[aria-label={json.dumps(name)}]')]"
            f".filter((b) => b.checkVisibility()).at({nth}).click()"
        )

    def test_copy(self):
        Scripted.chunks = [piece("# *a*\n```sh\nls -l\n\n```\nb"), DONE]
        self.say("a question")
        for how in (
            "navigator.clipboard.writeText = async (s) => { window.copied = s; }",
            "navigator.clipboard.writeText = async () => { throw new Error('no'); }; "
            "document.execCommand = () => { window.copied = document.activeElement.value; return true; }",
        ):
            self.browser.js(how)
            for name, text in (
                ("copy this code", "ls -l\n"),
                ("copy this answer", "# *a*\n```sh\nls -l\n\n```\nb"),
                ("copy this message", "a question"),
            ):
                self.browser.js("window.copied = ''; say('live', '')")
                self.click(name)
                self.browser.wait("window.copied !== ''")
                self.assertEqual(self.browser.js("copied"), text)
                self.browser.wait("$('live').textContent === 'Copied.'")
        self.browser.js("document.execCommand = () => false")
        self.click("copy this answer")
        self.browser.wait("$('live').textContent.includes('does not')")
        self.assertEqual(self.browser.js("document.querySelectorAll('body > textarea').length"), 0)

    def test_edit(self):
        for n in range(3):
            Scripted.chunks = [piece(f"a{n}"), DONE]
            self.say(f"q{n}")
        self.click("edit this message", 1)
        field = "document.querySelector('.turn textarea')"
        self.assertEqual(self.browser.js(f"document.activeElement === {field} && {field}.value"), "q1")
        self.browser.key("Escape")
        self.assertEqual(self.browser.js(f"{field} === null && document.activeElement.textContent"), "Edit")
        self.click("edit this message", 1)
        self.browser.js(f"{field}.select()")
        self.browser.call("Input.insertText", text="better")
        Scripted.chunks = [piece("new"), DONE]
        self.browser.key("Enter")
        self.browser.wait("stopper === null && turns.length === 4 && turns[3].content === 'new'")
        self.assertEqual(self.texts(), ["q0", "a0", "better", "new"])
        asked = [m["content"] for m in Scripted.asked[-1][1]["messages"]]
        self.assertEqual(asked, ["q0", "a0", "better"])
        self.open()
        self.assertEqual(self.texts(), ["q0", "a0", "better", "new"])

    def test_regenerate(self):
        for n in range(2):
            Scripted.chunks = [piece(f"a{n}"), DONE]
            self.say(f"q{n}")
        visible = "[...document.querySelectorAll('button')].filter((b) => b.textContent === 'Regenerate' && !b.hidden)"
        self.assertEqual(self.browser.js(visible + ".length"), 1)
        Scripted.chunks = [piece("other"), DONE]
        self.click("regenerate this answer")
        self.browser.wait("stopper === null && turns.length === 4 && turns[3].content === 'other'")
        self.assertEqual(self.texts(), ["q0", "a0", "q1", "other"])
        self.assertEqual([m["content"] for m in Scripted.asked[-1][1]["messages"]], ["q0", "a0", "q1"])
        # after a failure the message is back in the input, and the next attempt works
        Scripted.refusal = {"message": "no", "code": None}
        self.click("regenerate this answer")
        self.browser.wait("document.querySelector('.failed') && stopper === null")
        self.assertEqual(self.browser.js("[turns.length, $('prompt').value]"), [2, "q1"])
        Scripted.refusal = None
        self.browser.js("sendPrompt()")
        self.browser.wait("stopper === null && turns.length === 4")
        self.assertEqual(self.texts(), ["q0", "a0", "q1", "other"])

    def test_nothing_changes_while_it_streams(self):
        Scripted.chunks = [piece("a"), DONE]
        self.say("q")
        Scripted.chunks, Scripted.pause = [piece("x ")] * 5000, 0.02
        self.browser.type("prompt", "go on")
        self.browser.key("Enter")
        self.browser.wait("turns.length === 4 && turns[3].content.length > 4")
        self.assertEqual(self.browser.js("turns.map((t) => t.change.checkVisibility())"), [False] * 4)
        self.browser.js("again(turns[1]); edit(turns[0]); send('more')")
        self.assertEqual(self.browser.js("turns.length"), 4)
        self.browser.js("$('prompt').focus()")
        self.browser.key("Escape")
        self.browser.wait("stopper === null")
        self.assertEqual((self.last(".note"), self.text("live")), ("stopped", "Stopped."))
        self.browser.js("$('prompt').value = 'more'; sendPrompt()")
        self.browser.wait("stopper !== null && turns[5].content.length > 4")
        self.browser.js("$('clear').click()")
        self.browser.wait("stopper === null")
        self.assertEqual(self.browser.js("[turns.length, document.querySelectorAll('.turn').length]"), [0, 0])

    def test_phone(self):
        """Nothing is wider than a phone's screen, and the page does not scroll as a whole."""
        self.browser.call("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=2, mobile=True)
        try:
            wide = "word" * 200
            Scripted.chunks = [
                piece(
                    f"# {wide}\n\n{wide} `{wide}`\n\n```\n{wide}\n```\n- {wide}\n> {wide}\n\n"
                    + "|a" * 20
                    + "\n"
                    + "|-" * 20
                    + "\n"
                    + f"|{wide}" * 20
                ),
                DONE,
            ]
            self.say(wide)
            self.assertEqual(self.browser.js("document.querySelectorAll('.turn table').length"), 1)
            for what in ("document.documentElement", "$('log')", "document.body"):
                self.assertLessEqual(self.browser.js(what + ".scrollWidth"), 360, what)
            self.assertLessEqual(self.browser.js("document.documentElement.scrollHeight"), 640)
            self.assertGreater(self.browser.js("$('log').clientHeight"), 280)
            screenshot(self.browser, "phone")
        finally:
            self.browser.call("Emulation.clearDeviceMetricsOverride")

    def test_names_for_all_controls(self):
        """Every control has an accessible name."""
        Scripted.chunks = [piece("```\na\n```\n|a|b|\n|-|-|\n"), DONE]
        self.say("q")
        self.click("edit this message")
        self.assertEqual(self.browser.js("$('live').getAttribute('aria-live')"), "polite")
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
            # the model would end its answer early, and the page has no option that prevents it
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
