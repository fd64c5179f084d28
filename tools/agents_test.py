#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tool calls and reasoning with stock clients: CAIRN_BUILD=build python3 tools/agents_test.py

The clients are openai, langchain-openai, litellm and openai-agents, in this Python or in BUILD/clients (made by tools/setup.sh
clients BUILD); those that are missing are skipped by name. The model says fixed texts (tools/scripted_model.py): it calls
weather() when asked "ask:weather", and reports when it is given the result "result:22".
"""

import asyncio
import importlib.util
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_under_test import BUILD, TREE, Server, why_no_server  # noqa: E402

THEIR_PYTHON = os.path.join(BUILD, "clients", "bin", "python")
if not importlib.util.find_spec("openai") and os.access(THEIR_PYTHON, os.X_OK) and "--again" not in sys.argv:
    os.execv(THEIR_PYTHON, [THEIR_PYTHON, *sys.argv, "--again"])
if "--again" in sys.argv:
    sys.argv.remove("--again")
NO_SERVER = why_no_server()
TEMPLATE = """{%- if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif -%}
{%- for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}|{{ m.content }}
{%- endfor %}{% if false %}<think>{% endif %}"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The temperature in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
ARGUMENTS = {"city": "Paris", "days": 3}


def needs(module):
    return unittest.skipUnless(importlib.util.find_spec(module), f"{module} is not installed")


@unittest.skipIf(NO_SERVER, NO_SERVER)
class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--quiet", "--model", os.path.join(TREE, "serving", "golden", "scripted"),
                            "--chat-template", cls.template(), template=False)
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.stop)
        cls.base = cls.server.url + "/v1"

    @classmethod
    def template(cls):
        import tempfile

        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        path = os.path.join(cls.folder.name, "tools.jinja")
        with open(path, "w", encoding="utf-8") as f:
            f.write(TEMPLATE)
        return path

    @needs("openai")
    def test_openai(self):
        """A round of calls: asked, called, answered; whole and streamed."""
        import openai

        client = openai.OpenAI(base_url=self.base, api_key="none", max_retries=0)
        messages = [{"role": "user", "content": "x ask:weather"}]
        common = {"model": "scripted", "tools": [WEATHER], "temperature": 0}
        choice = client.chat.completions.create(messages=messages, **common).choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", "Let me see."))
        call = choice.message.tool_calls[0]
        self.assertEqual((call.type, call.function.name), ("function", "weather"))
        self.assertEqual(json.loads(call.function.arguments), ARGUMENTS)
        with client.chat.completions.stream(messages=messages, **common) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0]
        self.assertEqual(json.loads(final.message.tool_calls[0].function.arguments), ARGUMENTS)
        self.assertEqual(final.finish_reason, "tool_calls")
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "result:22"}]
        answer = client.chat.completions.create(messages=messages, **common).choices[0]
        self.assertEqual((answer.finish_reason, answer.message.content), ("stop", "It is 22 degrees."))

    @needs("openai")
    def test_reasoning(self):
        import openai

        client = openai.OpenAI(base_url=self.base, api_key="none", max_retries=0)
        messages = [{"role": "user", "content": "x ask:think"}]
        message = client.chat.completions.create(model="scripted", messages=messages, temperature=0).choices[0].message
        self.assertEqual((message.content, message.reasoning), ("Four.", "Two and two."))
        self.assertEqual(message.reasoning_content, message.reasoning)
        chunks = client.chat.completions.create(model="scripted", messages=messages, temperature=0, stream=True)
        deltas = [c.choices[0].delta for c in chunks]
        self.assertEqual("".join(getattr(d, "reasoning", None) or "" for d in deltas), "Two and two.")
        self.assertEqual("".join(d.content or "" for d in deltas), "Four.")

    @needs("openai")
    def test_responses(self):
        """/v1/responses: a round of calls; the items of a stream have the ids of the final ones."""
        import openai

        client = openai.OpenAI(base_url=self.base, api_key="none", max_retries=0)
        tool = {"type": "function", "strict": True, **WEATHER["function"]}
        common = {"model": "scripted", "tools": [tool], "temperature": 0, "instructions": "Help."}
        items = [{"role": "user", "content": [{"type": "input_text", "text": "x ask:both"}]}]
        first = client.responses.create(input=items, store=False, include=["reasoning.encrypted_content"], **common)
        self.assertEqual([i.type for i in first.output], ["reasoning", "function_call"])
        self.assertEqual((first.status, first.output[0].content[0].text), ("completed", "I have to look."))
        self.assertEqual(json.loads(first.output[1].arguments), {"city": "Bern", "days": 3})
        items += [i.to_dict() for i in first.output]
        items.append({"type": "function_call_output", "call_id": first.output[1].call_id, "output": "result:22"})
        self.assertEqual(client.responses.create(input=items, **common).output_text, "It is 22 degrees.")
        with client.responses.stream(input="x ask:weather", **common) as stream:
            events = list(stream)
            final = stream.get_final_response()
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual((events[0].type, events[-1].type), ("response.created", "response.completed"))
        self.assertEqual([i.type for i in final.output], ["message", "function_call"])
        added = [e.item.id for e in events if e.type == "response.output_item.added"]
        done = [e.item.id for e in events if e.type == "response.output_item.done"]
        self.assertEqual((added, done), ([i.id for i in final.output],) * 2)
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), "Let me see.")
        self.assertEqual(json.loads(final.output[1].arguments), ARGUMENTS)
        self.assertEqual(final.usage.total_tokens, final.usage.input_tokens + final.usage.output_tokens)
        cut = client.responses.create(input="x ask:plain", model="scripted", max_output_tokens=2)
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        for member in ({"previous_response_id": "resp_1"}, {"store": True}, {"background": True}):
            with self.assertRaises(openai.BadRequestError) as e:
                client.responses.create(input="x", model="scripted", **member)
            self.assertEqual(e.exception.param, next(iter(member)))

    @needs("langchain_openai")
    def test_langchain(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model="scripted", base_url=self.base, api_key="none", temperature=0).bind_tools([WEATHER])
        messages = [HumanMessage("x ask:weather")]
        said = model.invoke(messages)
        self.assertEqual([(c["name"], c["args"]) for c in said.tool_calls], [("weather", ARGUMENTS)])
        self.assertEqual(said.invalid_tool_calls, [])
        whole = None
        for chunk in model.stream(messages):
            whole = chunk if whole is None else whole + chunk
        self.assertEqual([(c["name"], c["args"]) for c in whole.tool_calls], [("weather", ARGUMENTS)])
        messages += [said, ToolMessage("result:22", tool_call_id=said.tool_calls[0]["id"])]
        self.assertEqual(model.invoke(messages).content, "It is 22 degrees.")

    @needs("litellm")
    def test_litellm(self):
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch the prices of models otherwise
        import litellm

        common = {"model": "openai/scripted", "api_base": self.base, "api_key": "none", "tools": [WEATHER],
                  "temperature": 0}
        messages = [{"role": "user", "content": "x ask:weather"}]
        message = litellm.completion(messages=messages, **common).choices[0].message
        self.assertEqual(json.loads(message.tool_calls[0].function.arguments), ARGUMENTS)
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "result:22"}]
        self.assertEqual(litellm.completion(messages=messages, **common).choices[0].message.content,
                         "It is 22 degrees.")

    @needs("agents")
    def test_openai_agents(self):
        """The framework runs the tool itself until the model answers."""
        from agents import (Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool,
                            set_tracing_disabled)
        from openai import AsyncOpenAI

        asked = []

        @function_tool
        def weather(city: str, days: int) -> str:
            """The temperature in a city."""
            asked.append((city, days))
            return "result:22"

        async def run(kind):
            client = AsyncOpenAI(base_url=self.base, api_key="none", max_retries=0)
            agent = Agent(name="a", instructions="Help.", tools=[weather],
                          model=kind(model="scripted", openai_client=client))
            return await Runner.run(agent, "x ask:weather", max_turns=4)

        set_tracing_disabled(True)
        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            self.assertEqual(asyncio.run(run(kind)).final_output, "It is 22 degrees.")
        self.assertEqual(asked, [("Paris", 3)] * 2)


if __name__ == "__main__":
    unittest.main()
