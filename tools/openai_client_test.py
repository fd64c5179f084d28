#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `cairn serve` with the official `openai` package: CAIRN_BUILD=build python3 tools/openai_client_test.py

The package is looked up in this Python and in BUILD/clients (made by tools/setup.sh clients BUILD); without it the tests
are skipped.
"""

import asyncio
import importlib.util
import json
import os
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_under_test import BUILD, Server, why_no_server  # noqa: E402

CLIENTS = os.path.join(BUILD, "clients")
THEIR_PYTHON = os.path.join(CLIENTS, "bin", "python")
if not importlib.util.find_spec("openai") and os.access(THEIR_PYTHON, os.X_OK) and "--again" not in sys.argv:
    os.execv(THEIR_PYTHON, [THEIR_PYTHON, *sys.argv, "--again"])
if "--again" in sys.argv:
    sys.argv.remove("--again")
try:
    import openai
except ImportError:
    openai = None
NO_SERVER = why_no_server()
# the embedded model has been trained to answer such questions
PROMPT = "What is 55 - 8?\n"
LONG = {"extra_body": {"ignore_eos": True}}


def without_sampler():
    """Returns a reason to skip if the table cpu lacks the operations for penalties and log-probabilities, else None."""
    try:
        Shared.client.completions.create(model=Shared.model, prompt="a", max_tokens=1, logprobs=0)
    except openai.BadRequestError as e:
        if "the table has no operation" in str(e):
            return "this table has no log-probabilities"
    return None


class Shared(unittest.TestCase):
    """One server for all tests of a class."""

    options = ()

    @classmethod
    def setUpClass(cls):
        if cls is Shared:
            raise unittest.SkipTest("has no tests")
        Shared.server = cls.server = Server("--quiet", *cls.options)
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.stop)
        Shared.client = cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)
        Shared.model = cls.model = cls.client.models.list().data[0].id

    def complete(self, prompt=PROMPT, **more):
        more = {"max_tokens": 24, "temperature": 0, **LONG, **more}
        return self.client.completions.create(model=self.model, prompt=prompt, **more)

    def chat(self, text=PROMPT, **more):
        more = {"max_completion_tokens": 24, "temperature": 0, **LONG, **more}
        return self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": text}], **more
        )


@unittest.skipIf(NO_SERVER, NO_SERVER)
@unittest.skipIf(not openai, "the openai package is not installed")
class Client(Shared):
    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [self.model])
        self.assertEqual(self.client.models.retrieve(self.model).object, "model")

    def test_completion(self):
        one, two = self.complete(), self.complete()
        self.assertEqual((one.object, one.choices[0].finish_reason), ("text_completion", "length"))
        self.assertTrue(one.choices[0].text)
        self.assertEqual(one.choices[0].text, two.choices[0].text)
        self.assertNotEqual(one.id, two.id)
        self.assertEqual(one.usage.completion_tokens, 24)
        self.assertEqual(one.usage.total_tokens, one.usage.prompt_tokens + 24)
        self.assertLess(abs(one.created - time.time()), 60)

    def test_prompts(self):
        """Prompts as texts, token ids, and lists of them: equal prompts give equal answers."""
        status, body = post(self.server.url + "/tokenize", {"prompt": PROMPT})
        self.assertEqual(status, 200)
        ids = body["tokens"]
        want = self.complete().choices[0].text
        self.assertEqual(self.complete(ids).choices[0].text, want)
        both = self.complete([PROMPT, PROMPT])
        self.assertEqual([(c.index, c.text) for c in both.choices], [(0, want), (1, want)])
        self.assertEqual(self.complete([ids, ids]).usage.completion_tokens, 48)

    def test_stream(self):
        want = self.complete()
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks[:-1]), want.choices[0].text)
        self.assertGreater(len(chunks), 3)
        self.assertEqual([c.usage for c in chunks[:-1]], [None] * (len(chunks) - 1))
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 24))
        self.assertEqual([c.choices[0].finish_reason for c in chunks[-2:-1]], ["length"])
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_chat(self):
        answer = self.chat()
        self.assertEqual((answer.object, answer.choices[0].message.role), ("chat.completion", "assistant"))
        chunks = list(self.chat(stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        said = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(said, answer.choices[0].message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")
        parts = [{"type": "text", "text": PROMPT}]
        self.assertEqual(self.chat(parts).choices[0].message.content, said)

    def test_n_and_seed(self):
        sampled = {"n": 3, "temperature": 1.0, "seed": 11, "max_tokens": 12}
        one, two = self.complete(**sampled), self.complete(**sampled)
        texts = [c.text for c in one.choices]
        self.assertEqual([c.index for c in one.choices], [0, 1, 2])
        self.assertEqual(texts, [c.text for c in two.choices])
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(one.usage.completion_tokens, 36)
        streamed = ["", "", ""]
        for chunk in self.complete(stream=True, **sampled):
            streamed[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(streamed, texts)

    def test_stop(self):
        text = self.complete().choices[0].text
        word = text[8:11]
        cut = self.complete(stop=[word, "never said"])
        self.assertEqual((cut.choices[0].text, cut.choices[0].finish_reason), (text[: text.index(word)], "stop"))
        streamed = "".join(c.choices[0].text for c in self.complete(stop=word, stream=True))
        self.assertEqual(streamed, cut.choices[0].text)

    def test_logprobs(self):
        why = without_sampler()
        if why:
            self.skipTest(why)
        spelled = {"extra_body": {"ignore_eos": True, "skip_special_tokens": False}}
        got = self.complete(logprobs=3, **spelled)
        info = got.choices[0].logprobs
        self.assertEqual([len(x) for x in (info.tokens, info.token_logprobs, info.top_logprobs)], [24, 24, 24])
        self.assertEqual("".join(info.tokens), got.choices[0].text)
        for token, value, top in zip(info.tokens, info.token_logprobs, info.top_logprobs):
            self.assertLessEqual(value, 0)
            self.assertAlmostEqual(top[token], value, places=4)
            self.assertAlmostEqual(max(top.values()), value, places=4)  # greedy
        chat = self.chat(logprobs=True, top_logprobs=2, max_completion_tokens=5).choices[0].logprobs.content
        self.assertEqual([len(t.top_logprobs) for t in chat], [2] * 5)
        streamed = [
            t
            for c in self.complete(logprobs=0, stream=True)
            if c.choices[0].logprobs
            for t in c.choices[0].logprobs.tokens
        ]
        self.assertEqual(streamed, info.tokens)

    def test_penalties_and_bias(self):
        why = without_sampler()
        if why:
            self.skipTest(why)
        plain = self.complete(max_tokens=4)
        first = post(self.server.url + "/tokenize", {"prompt": plain.choices[0].text, "add_special_tokens": False})[1]
        banned = self.complete(max_tokens=4, logit_bias={str(first["tokens"][0]): -100})
        self.assertNotEqual(banned.choices[0].text, plain.choices[0].text)
        forced = self.complete(max_tokens=4, logit_bias={"300": 100})
        spelled = post(self.server.url + "/detokenize", {"tokens": [300] * 4})[1]["prompt"]
        self.assertEqual(forced.choices[0].text, spelled)
        self.complete(presence_penalty=1.5, frequency_penalty=1.0, extra_body={"repetition_penalty": 1.2, "min_p": 0.1})

    def refused(self, error, param, call=None, **more):
        with self.assertRaises(error) as caught:
            (call or self.complete)(**more)
        self.assertEqual(caught.exception.param, param, caught.exception)
        self.assertTrue(caught.exception.body["message"])
        return caught.exception

    def test_errors_are_typed(self):
        bad = openai.BadRequestError
        self.refused(bad, "temperature", temperature=3)
        self.refused(bad, "max_tokens", max_tokens=0)
        self.refused(bad, "stop", stop=["a"] * 33)
        self.refused(bad, "suffix", suffix="x")
        self.refused(bad, "best_of", best_of=5)
        self.refused(bad, "no_such", extra_body={"no_such": 1})
        tools = [{"type": "function", "function": {"name": "a b"}}]
        self.refused(bad, "tools[0].function.name", self.chat, tools=tools)
        self.refused(bad, "response_format.type", self.chat, response_format={"type": "xml"})
        self.assertEqual(self.refused(bad, "prompt", prompt=[1] * 5000).code, "context_length_exceeded")
        # a streamed request is also refused before the stream begins
        self.refused(bad, "top_p", top_p=7, stream=True)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="another", prompt="a")
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_found", "model"))
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=self.model, input="a")
        self.complete(max_tokens=1)  # the server still works

    def test_a_client_that_goes(self):
        """Closing a stream cancels its request."""
        stream = self.complete(stream=True, max_tokens=1500)
        next(iter(stream))
        stream.close()
        end = time.monotonic() + 20
        while self.server.metric("vllm:num_requests_running") and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)
        self.assertGreater(self.server.metric('vllm:request_success_total{finished_reason="abort"'[:26]), 0)

    def test_many_at_once(self):
        async def one(client, i):
            stream = await client.completions.create(
                model=self.model,
                prompt=f"{i}: {PROMPT}",
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
                **LONG,
            )
            return [c async for c in stream]

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                return await asyncio.gather(*(one(client, i) for i in range(24)))

        for chunks in asyncio.run(all_of_them()):
            self.assertEqual(chunks[-1].usage.completion_tokens, 20)


@unittest.skipIf(NO_SERVER, NO_SERVER)
@unittest.skipIf(not openai, "the openai package is not installed")
class Limits(unittest.TestCase):
    def test_key(self):
        with Server("--quiet", env={"CAIRN_API_KEY": "right"}) as server:
            ask = {"model": "embedded", "prompt": "a", "max_tokens": 1}
            for key in ("wrong", "righ", "right2"):
                with self.assertRaises(openai.AuthenticationError):
                    openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0).completions.create(**ask)
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="right", max_retries=0)
            self.assertEqual(client.completions.create(**ask).usage.completion_tokens, 1)

    def test_full_queue(self):
        """Status 429 raises RateLimitError; with the client's own retries, which honour Retry-After, requests succeed."""

        async def storm(url):
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                ask = {"model": "embedded", "prompt": PROMPT, "max_tokens": 100, **LONG}
                return await asyncio.gather(
                    *(client.completions.create(**ask) for _ in range(40)), return_exceptions=True
                )

        with Server("--quiet", "--batch", "2", "--max-queued", "3") as server:
            got = asyncio.run(storm(server.url + "/v1"))
            refused = [e for e in got if isinstance(e, openai.RateLimitError)]
            self.assertEqual([e for e in got if isinstance(e, Exception) and e not in refused], [])
            self.assertGreater(len(refused), 5)
            self.assertGreaterEqual(int(refused[0].response.headers["Retry-After"]), 1)
            self.assertGreaterEqual(len(got) - len(refused), 3)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, json.loads(answer.read())


if __name__ == "__main__":
    unittest.main()
