#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference for serving/template/chat_template.c: Jinja itself, configured as in Hugging Face transformers.

golden_chat.py FILE
    Writes FILE (serving/golden/chat.json): chat templates in the forms found in checkpoints of the supported models,
    conversations and the expected texts; and small templates, one for each feature of the language.

golden_chat.py --random N SEED
    Writes to stdout a line of variables, then N lines {"t": template, "out": text or null} of random expressions.
    Exits with status 77 if Jinja is not installed.

Needs: pip install jinja2 (3.1)
"""
import copy
import json
import random
import sys
import warnings

try:
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as e:
    print("jinja2: %s" % e)
    sys.exit(77)


class Generation(Extension):
    """{% generation %}, by which transformers marks the assistant's text; it does not change the text."""
    tags = {"generation"}

    def parse(self, parser):
        from jinja2 import nodes
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: __import__("time").strftime(f, __import__("time").gmtime(0))
    return env


ENV = environment()

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA31 = r'''{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to the following functions. To call a function, please respond with JSON for a function call." }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Custom tools are passed in a user message with some extra guidance #}
{%- if tools_in_user_message and not tools is none %}
    {#- Extract the first user message so we can plug it in here #}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call " }}
    {{- "with its proper arguments that best answers the given prompt.\n\n" }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {#- This means we're in ipython mode #}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
'''

LLAMA32 = LLAMA31.replace('''    {%- set date_string = "26 Jul 2024" %}
''', '''    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
''').replace('builtin_tools is defined or tools is not none', 'tools is not none')

MISTRAL1 = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

MIXTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, with the exception of an initial optional system message!') }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL3 = r'''{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
'''

QWEN2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TOOLS_HEAD = r'''{{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}'''

QWEN25 = r'''{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n" }}''' + TOOLS_HEAD + r'''
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
'''

QWEN3 = r'''{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    ''' + TOOLS_HEAD + r'''
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}'''

GEMMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

DEEPSEEK2 = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

BEGIN3, END2 = "<|begin_of_text|>", "</s>"
TEMPLATES = [
    ("chatml", CHATML, "<s>", "<|im_end|>"), ("llama2", LLAMA2, "<s>", END2), ("llama3", LLAMA3, BEGIN3, "<|eot_id|>"),
    ("llama31", LLAMA31, BEGIN3, "<|eot_id|>"), ("llama32", LLAMA32, BEGIN3, "<|eot_id|>"),
    ("mistral1", MISTRAL1, "<s>", END2), ("mixtral", MIXTRAL, "<s>", END2), ("mistral3", MISTRAL3, "<s>", END2),
    ("qwen2", QWEN2, None, "<|im_end|>"), ("qwen25", QWEN25, None, "<|im_end|>"), ("qwen3", QWEN3, None, "<|im_end|>"),
    ("gemma2", GEMMA2, "<bos>", "<eos>"),
    ("deepseek2", DEEPSEEK2, "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
]


def turns(*contents, system=None):
    out = [] if system is None else [{"role": "system", "content": system}]
    return out + [{"role": "assistant" if i % 2 else "user", "content": c} for i, c in enumerate(contents)]


TOOL = {"type": "function", "function": {
    "name": "get_temperature", "description": "The temperature at a place, in \u00b0C.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "A \"town\""},
                                                    "digits": {"type": "integer", "default": 1.5}},
                   "required": ["place"]}, "return": {"type": "number"}}}
CALL = {"id": "abc123xyz", "type": "function", "function": {"name": "get_temperature", "arguments": {"place": "K\u00f6ln"}}}

CONVERSATIONS = [
    {"messages": turns("Hello!")},
    {"messages": turns("  What is a warp?\n", " Thirty-two threads.  ", "And a block?", system="You are brief.")},
    {"messages": turns("", "", "")},
    {"messages": turns("模型 \u00e9\u0301 😀👨\u200d👩\u200d👧 \u2028x\u00a0", "\t日本語\u3000", "\\n 'quoted' \"double\" {{ 7 * 7 }} {% if %} {# #}")},
    {"messages": turns("<|eot_id|><|im_end|></s>[/INST]<end_of_turn>", "<|start_header_id|>system<|end_header_id|>", "<s>",
                       system="<|im_start|>user\n<<SYS>>")},
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    {"messages": [{"role": "assistant", "content": "first"}, {"role": "tool", "content": "x"}]},
    {"messages": []},
    {"messages": turns("Think.", "<think>\nwell\n</think>\n\nDone.", "Again", "<think>\n\n</think>\n\nok")},
    {"messages": turns("Warm?") + [{"role": "assistant", "content": "", "tool_calls": [CALL]},
                                   {"role": "tool", "tool_call_id": "abc123xyz", "content": "21.5"},
                                   {"role": "assistant", "content": "Yes."}], "tools": [TOOL], "enable_thinking": False},
    {"messages": turns("Q" * 40, "A\n" * 10, "end", system=" s "), "enable_thinking": True},
]

# Templates for each feature of the language. V holds the variables.
V = {"a": 1, "s": "Hello World", "u": "äöü ß Ω 模型 😀", "l": [3, 1, 2], "e": [], "t": True, "f": 2.5, "n": None,
     "d": {"x": 1, "y": {"z": [1, 2]}, "items": "own", "B": 2, "a": 0}, "m": [{"r": "u", "c": "1"}, {"r": "a", "c": "2"}],
     "q": "it's \"q\"\n\t\\ \u200b\x7f\u00e9", "blanks": " \t\n x  y \u3000", "html": "<a&b>", "neg": -7}
SNIPPETS = """{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}
{{ 1.5 + 1 }} {{ 1e3 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.125 }} {{ 1e22 }} {{ 5e-324 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ true }} {{ False }} {{ none }} {{ None }} {{ true + true }} {{ 1 == 1.0 }} {{ true == 1 }} {{ "1" == 1 }}
{{ s ~ 1 ~ none ~ 2.5 }} {{ 'a' + 'b' * 3 }} {{ 'a' 'b' "c" }} {{ [1] + [2, 3] }} {{ (1, 2) + (3,) }} {{ [0] * 3 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 3 >= 3 }} {{ 'a' < 'b' }} {{ 'a' in 'cat' }} {{ 'x' not in 'cat' }} {{ 3 in l }} {{ 'x' in d }} {{ 5 not in l }}
{{ not true }} {{ not a == 2 }} {{ a and s }} {{ e or 'none' }} {{ 0 or none }} {{ 1 and 0 }} {{ not e and t }}
{{ 'yes' if t else 'no' }} {{ 'yes' if e else 'no' }} [{{ 'yes' if e }}] {{ 1 if e else 2 if t else 3 }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[:-3] }} {{ s[::2] }} {{ s[::-1] }} {{ u[2] }} {{ u[-1] }} {{ u[3:8] }} {{ u[100:] }} {{ s[5:2] }}
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[:2] }} {{ l[-2:] }} {{ l[5] }} {{ l[3:0:-1] }} {{ l[-100:100] }} {{ (1, 2, 3)[1:] }}
{{ d.x }} {{ d['y'].z[1] }} {{ d.y['z'][0] }} {{ d.missing }} {{ d['missing'] }} {{ m[0].r }} {{ m.1.c }} {{ d['items'] }}
{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('x') }} {{ d.get('nope') }} {{ d.get('nope', 5) }}
{{ missing }} {{ missing is defined }} {{ missing is undefined }} {{ missing | default('d') }} {{ missing or 'or' }} {{ missing == other }} {{ 'a' in missing }}
{{ missing.x }}
{{ missing + 1 }}
{{ 1 + 'a' }}
{{ 1 / 0 }}
{{ none.x }} {{ n | default('d') }} {{ n | default('d', true) }} {{ '' | d('x', boolean=true) }}
{{ a is defined }} {{ a is number }} {{ f is float }} {{ a is integer }} {{ t is boolean }} {{ t is integer }} {{ s is string }} {{ l is sequence }} {{ d is mapping }} {{ n is none }} {{ l is iterable }} {{ a is iterable }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ a is eq 1 }} {{ a is equalto(2) }} {{ 1 is lt 2 }} {{ 2 is ge 3 }} {{ 1 is in l }} {{ a is sameas 1 }} {{ t is true }} {{ t is false }}
{{ s is not none }} {{ not s is none }} {{ s is defined and a is defined }} {{ s is string or x }} {{ 'ABC' is upper }} {{ 'abc' is lower }} {{ 'aB' is lower }}
{{ s | upper }} {{ s | lower }} {{ 'hello wORLD' | capitalize }} {{ 'hello wORLD-x (y' | title }} {{ u | lower | title }} {{ 5 | upper }}
[{{ blanks | trim }}] [{{ 'xxaxx' | trim('x') }}] [{{ blanks.strip() }}] [{{ blanks.lstrip() }}] [{{ blanks.rstrip() }}] [{{ 'abcba'.strip('ab') }}]
{{ s | length }} {{ u | length }} {{ l | count }} {{ d | length }} {{ missing | length }} {{ e | length }}
{{ l | join }} {{ l | join(', ') }} {{ ['a', 1, none] | join('-') }} {{ m | join(',', attribute='c') }} {{ 'abc' | join('.') }} {{ e | join }}
{{ l | first }} {{ l | last }} {{ e | first }} {{ 'abc' | last }} {{ 'abc' | list }} {{ l | reverse | list }} {{ 'äbc' | reverse }} {{ d | list }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '3.9' | int }} {{ '2.5' | float }} {{ 'x' | float }} {{ -5 | abs }} {{ neg | abs }} {{ 5 | string + '!' }}
{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc' | replace('', '-') }} {{ 'äb'.replace('', '.') }}
{{ d | tojson }} {{ q | tojson }} {{ [1, 2.5, true, none, 'x'] | tojson }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ html | tojson }} {{ e | tojson }} {{ {} | tojson }}
{{ d | tojson(indent=2) }} {{ d | tojson(sort_keys=true) }} {{ l | tojson(separators=(',', ':')) }} {{ d | tojson(separators=(',', ':'), indent=1) }} {{ [[], {}] | tojson(indent=4) }}
{{ missing | tojson }}
{{ d | items | list }} {{ d | dictsort }} {{ [1, 1, 2, 'a', 'A'] | unique | list }}
{{ m | map(attribute='c') | list }} {{ l | map('string') | join('+') }} {{ m | map(attribute='zz', default='?') | list }} {{ [' a ', 'b '] | map('trim') | list }} {{ ['aXb'] | map('replace', 'X', '-') | list }}
{{ l | select('odd') | list }} {{ l | reject('odd') | list }} {{ [0, 1, ''] | select | list }} {{ l | select('gt', 1) | list }} {{ m | selectattr('r', 'equalto', 'u') | list }} {{ m | rejectattr('r', 'eq', 'u') | map(attribute='c') | join }} {{ m | selectattr('r') | list | length }}
{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ 'a\\n' | indent(1) }}|{{ '' | indent(first=true) }}
{{ s.startswith('Hell') }} {{ s.endswith('x') }} {{ s.startswith(('x', 'H')) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ u.find('模') }} {{ s.count('l') }} {{ ''.count('') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a</t>b</t>c'.split('</t>')[-1] }}
{{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ ', '.join(['a', 'b']) }} {{ 'abc'.removeprefix('a').removesuffix('c') }} {{ 'heLLo wOrld'.title() }} {{ 'heLLo'.capitalize() }} {{ 'x'.upper() }} {{ '12'.isdigit() }} {{ 'ab1'.isalpha() }} {{ ' '.isspace() }}
{{ q }} {{ [q] }} {{ ["it's", 'a"b', u] }} {{ {'a': none, 1: [true, 2.0]} }} {{ (1,) }} {{ () }} {{ [missing] }}
{{ range(5) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ dict(a=1, b=2) }} {{ namespace(x=3).x }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}
{% for x in e %}x{% else %}empty{% endfor %}{% for x in l if x > 1 %}[{{ x }}{{ loop.index }}/{{ loop.length }}]{% else %}no{% endfor %}{% for x in l if x > 9 %}{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'añb' %}({{ c }}){% endfor %}{% for (i, j) in [(1, 2)] %}{{ i + j }}{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('o', 'e') }} {% for y in l %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(n=0, found=false) %}{% for i in l %}{% set ns.n = ns.n + i %}{% set ns.new = i %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns.new }}{{ ns.nothing }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set z %}block {{ a }}{% endset %}[{{ z }}]
{% set d.x = 1 %}
{% set a, b = [1] %}
{% macro f(x, y=2, z='q') %}<{{ x }}{{ y }}{{ z }}>{% endmacro %}{{ f(1) }}{{ f(1, z=3) }}{{ f(y=5) }}{{ f(1, 2, 3) | length }}{% macro g(n) %}{{ n }}{% if n > 0 %}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(3) }}
{% macro f() %}{{ top }}{% endmacro %}{% set top = 'T' %}{% for top in [1] %}{{ f() }}{% endfor %}{{ f(1) }}
{% if a == 1 %}one{% elif a == 2 %}two{% else %}other{% endif %}{% if e %}{% elif t %}elif{% endif %}{% if not t %}x{% else %}else{% endif %}
{% generation %}g{{ a }}{% endgeneration %}{% raw %}{{ raw }}{% no %}{% endraw %}{# comment {{ 1 }} #}after
{{ {'a': {'b': {'c': 1}}}['a']['b'].c }}{{ {'x': '}}'}.x }}{{ '%}' }}
{{ "esc \\t\\\\\\"\\'\\x41\\u00e9\\U0001F600\\101\\q" }}
{{ 1_000 }} {{ 0 }} {{ 10 }} {{ 1.5e2 }} {{ -1 | abs }} {{ -a | abs }} {{ - 5 }} {{ +3 }} {{ 2 * -3 }} {{ 10 - 2 - 3 }} {{ 2 ** 3 ** 2 }}
{{ a + 1 ~ 'x' }} {{ 'x' ~ a + 1 }}
{{ (1, 2) == (1, 2) }} {{ [1, [2]] == [1, [2]] }} {{ {'a': 1} == {'a': 1.0} }} {{ none == false }} {{ [] == () }} {{ 'a' != 'b' }} {{ 1 != none }}
{{ m == [{'r': 'u', 'c': '1'}, {'c': '2', 'r': 'a'}] }} {{ m[0] in m }} {{ s.nope }} {{ s['nope'] }} {{ l['x'] }}
{{ s.nope() }}
{{ raise_exception('no: ' ~ a) }}
{{ strftime_now('%Y-%m-%d %H') }}
{{ a.b.c }}
{{ l | nofilter }}
{{ l is notest }}
{{ [1, 2 }}
{% if %}{% endif %}
{% for x in l %}
{% endfor %}{% endfor %}
{% unknown %}
{{ 'a' 1 }}
{{ s | length > 3 and s | length < 100 }} {{ l | length - 1 }} {{ (l | length) * 2 }} {{ l | first | string ~ 'x' }} {{ not l | length == 3 }}
{{ 9223372036854775807 }} {{ -9223372036854775807 }} {{ 99999999 * 99999999 }}
{{ 'ab' 'cd' | upper }} {{ ('x' if false else 'y') | upper }} {{ (a, s)[1] | lower }} {{ s[0:5] | upper }} {{ s.split(' ')[1][0] | lower }}
{{ d.y.z | map('string') | join(d.x | string) }} {{ [d.x, d['y']] | last }} {{ (m | last).r }} {{ m[-1]['c'] | int + 1 }} {{ s.upper().lower().title() }}""".split("\n")

# templates with white space that matters, which SNIPPETS (one per line) cannot have
LAYOUT = [
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a {% if t %} b {% endif %} c", "  {%- if t -%}  \n x \n {%- endif -%}  \n y",
    "{{ 1 }}\n\n{{- 2 }}\n  {{ 3 -}}  \n4", "x\n\t{%+ if t +%}\ny\n{%+ endif %}\n\n", "{# c #}\n  {# d #}\nz {#- e -#} w",
    "  {# lead #}\n{% set q = 1 %}\n{% set r = 2 %}\n{{ q }}{{ r }}\n", "{% raw %}\n {% x %} {% endraw %}\nend", "{%- raw -%}  a  {%- endraw -%}  b",
    "{% for x in l %}\n  - {{ x }}\n{% endfor %}\ndone\n\n", "a\r\nb\rc\n{% if t %}\r\nd{% endif %}", "{{ 'x\r\ny' }}", "\n\n{% if t %}\n\n\nq{% endif %}\n",
    "{%- for m in m %}\n    {{- m.r }}\n    {%- if not loop.last %}\n        {{- ', ' }}\n    {%- endif %}\n{%- endfor %}\n", "\u3000{%- if t %} x{% endif %}", "a}}b%}c#}{ {d",
    "{% if t %}x{% endif %}\n{{ 1 }}\n{# c +#}\nd\n{% if t +%}\ne{% endif %}", "{{-1}} {{- 1 -}} {{+1}}", "{{ 'a\\\nb' }}", "\t {% if t %}a{% endif %} \t{% if t %}\n\tb{% endif %}",
]


def render(template, variables):
    try:
        # a copy, because indent of a list modifies that list
        return ENV.from_string(template).render(**copy.deepcopy(variables))
    except Exception as e:                                   # only whether it fails matters
        return {"error": type(e).__name__}


def goldens(path):
    out = {"templates": [], "conversations": CONVERSATIONS, "cases": [], "variables": V, "snippets": []}
    for k, (name, text, bos, eos) in enumerate(TEMPLATES):
        tokens = {key: token for key, token in (("bos_token", bos), ("eos_token", eos)) if token is not None}
        out["templates"].append({"name": name, "chat_template": text, **tokens})
        for i, conversation in enumerate(CONVERSATIONS):
            prompt = bool((i + k) % 2)
            given = dict({"tools": None, "documents": None}, **conversation)
            text_out = render(text, dict(given, add_generation_prompt=prompt, **tokens))
            out["cases"].append([k, i, prompt, text_out])
    for text in SNIPPETS + LAYOUT:
        out["snippets"].append([text, render(text, V)])
    with open(path, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


class Random:
    """Expressions of every kind, most of them with matching types."""
    NAMES = list(V) + ["missing"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def leaf(self):
        return self.pick(self.r.choice(self.NAMES), str(self.r.randint(-3, 9)), repr(self.r.choice(["", "a", "lo", " x ", "é"])),
                         "true", "none", "[]", "2.5", "'a,b'", "m[0]", "d.y")

    def expr(self, depth):
        if depth <= 0 or self.r.random() < 0.15:
            return self.leaf()
        e = lambda: self.expr(depth - 1)
        kind = self.r.randint(0, 11)
        if kind <= 2:
            return "(%s %s %s)" % (e(), self.pick("+", "-", "*", "//", "%", "~", "/", "==", "!=", "<", ">=", "in", "not in", "and", "or"), e())
        if kind == 3:
            return "(%s if %s else %s)" % (e(), e(), e())
        if kind == 4:
            return "(%s)[%s]" % (e(), self.pick("0", "-1", "1:", ":-1", "::-1", "1:3", "'x'", "::2", "-2:", e()))
        if kind <= 6:
            return "(%s) | %s" % (e(), self.pick("trim", "length", "upper", "lower", "tojson", "default('D')", "join('-')", "first", "last", "list",
                                                  "string", "int", "float", "reverse | list", "capitalize", "title", "abs", "replace('a', 'X')", "items | list",
                                                  "map('string') | list", "select | list", "unique | list", "indent(2)", "default('D', true)",
                                                  "tojson(indent=2)", "trim('a')", "count", "reject('none') | list"))
        if kind == 7:
            return "(%s is %s%s)" % (e(), self.pick("", "not "), self.pick("defined", "none", "string", "mapping", "sequence", "iterable", "number",
                                                                            "integer", "boolean", "true", "odd", "eq(%s)" % e(), "in(%s)" % e()))
        if kind == 8:
            return "(%s).%s" % (e(), self.pick("upper()", "strip()", "split()", "split(',')", "startswith('a')", "replace('a', 'b')", "x", "title()",
                                               "splitlines()", "get('x')", "keys() | list", "find('o')", "rfind('l')", "rsplit(' ', 1)", "lstrip('H ')"))
        if kind == 9:
            return self.pick("[%s, %s]" % (e(), e()), "(%s, %s)" % (e(), e()), "{'k': %s}" % e(), "[%s]" % e())
        if kind == 10:
            return "%s%s" % (self.pick("not ", "-", "+"), "(%s)" % e())
        return "(%s)" % e()

    def template(self):
        body = "{{ %s }}" % self.expr(3)
        shape = self.r.randint(0, 5)
        if shape == 1:
            return "{%% for x in %s %%}{{ loop.index }}%s{{ x }}{%% else %%}E{%% endfor %%}" % (self.expr(2), body)
        if shape == 2:
            return "{%% set x = %s %%}{{ x }}|{%% if x %%}%s{%% else %%}no{%% endif %%}" % (self.expr(2), body)
        if shape == 3:
            return "{%% macro f(p) %%}%s{{ p }}{%% endmacro %%}{{ f(%s) | length }}" % (body, self.expr(1))
        return body


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--random":
        source = Random(int(sys.argv[3]))
        warnings.simplefilter("ignore")                      # Python warns of subscripts of numbers
        print(json.dumps(V))
        for _ in range(int(sys.argv[2])):
            t = source.template()
            out = render(t, V)
            print(json.dumps({"t": t, "out": out if isinstance(out, str) else None}))
        return 0
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    goldens(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
