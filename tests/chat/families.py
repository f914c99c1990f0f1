"""Answers of well-known models, each a call of the weather in Łódź, some with a thought before it."""

from formats import format_of

from cobali_ray.chat.derivation import derive
from cobali_ray.chat.format import GENERIC
from cobali_ray.chat.generic import written
from cobali_ray.chat.template import ChatTemplate

PHI = ChatTemplate(
    "{% if tools %}<|tool|>{{ tools | tojson }}<|/tool|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% if message.tool_calls %}<|tool_call|>["
    "{% for call in message.tool_calls %}{{ ', ' if not loop.first }}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "{% endfor %}]<|/tool_call|>{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def wide(text):
    """Return DeepSeek's own kind of markers."""
    return text.replace("|", "\uff5c")


FAMILIES = {
    "Gemma 4": ("google-gemma-4-31B-it", '<|tool_call>call:get_weather{city:<|"|>Łódź<|"|>}<tool_call|>'),
    "GPT-OSS": (
        "openai-gpt-oss-120b",
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
            'to=functions.get_weather <|constrain|>json<|message|>{"city": "Łódź"}<|call|>'
        ),
    ),
    "GPT-OSS, as rendered": (
        "openai-gpt-oss-120b",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Łódź"}<|call|>',
    ),
    "DeepSeek V3.1": (
        "deepseek-ai-DeepSeek-V3.1",
        wide(
            "<|tool▁calls▁begin|><|tool▁call▁begin|>get_weather<|tool▁sep|>"
            '{"city": "Łódź"}<|tool▁call▁end|><|tool▁calls▁end|>'
        ),
    ),
    "DeepSeek V3.2": (
        "deepseek-ai-DeepSeek-V3.2",
        wide(
            '<|DSML|function_calls>\n<|DSML|invoke name="get_weather">\n'
            '<|DSML|parameter name="city" string="true">Łódź</|DSML|parameter>\n</|DSML|invoke>\n'
            "</|DSML|function_calls>"
        ),
    ),
    "Kimi K2": (
        "moonshotai-Kimi-K2",
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Łódź"}<|tool_call_end|><|tool_calls_section_end|>'
        ),
    ),
    "Kimi K3": (
        "Kimi-K3",
        (
            '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>Łódź<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>"
        ),
    ),
    "GLM 4.6": (
        "GLM-4.6",
        "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Łódź</arg_value>\n</tool_call>",
    ),
    "Qwen 2.5": (
        "Qwen-Qwen2.5-7B-Instruct",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź"}}\n</tool_call>',
    ),
    "Qwen3-Coder": (
        "Qwen3-Coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nŁódź\n</parameter>\n</function>\n</tool_call>",
    ),
    "Llama 3.1": (
        "meta-llama-Llama-3.1-8B-Instruct",
        '{"name": "get_weather", "parameters": {"city": "Łódź"}}',
    ),
    "Mistral Nemo": (
        "mistralai-Mistral-Nemo-Instruct-2407",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Łódź"}, "id": "abcd12345"}]',
    ),
    "Mistral Small 3.2": (
        "Mistral-Small-3.2-24B-Instruct-2506",
        '[TOOL_CALLS]get_weather[CALL_ID]abcd12345[ARGS]{"city": "Łódź"}',
    ),
    "Ministral 3": (
        "mistralai-Ministral-3-14B-Reasoning-2512",
        '[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Łódź"}',
    ),
    "Command R7B": (
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        (
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
            '"parameters": {"city": "Łódź"}}\n]<|END_ACTION|>'
        ),
    ),
    "MiniMax M2": (
        "MiniMax-M2",
        (
            '<think>\nHm.\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n'
            '<parameter name="city">Łódź</parameter>\n</invoke>\n</minimax:tool_call>'
        ),
    ),
    "MiniMax M3": (
        "MiniMax-M3",
        (
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Łódź'
            "]<]minimax[>[</city>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
        ),
    ),
    "Phi-4": ("Phi-4", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Łódź"}}]<|/tool_call|>'),
    "LFM 2": ("LFM2-8B-A1B", "<|tool_call_start|>[get_weather(city='Łódź')]<|tool_call_end|>"),
    "functionary": ("meetkai-functionary-medium-v3.2", '>>>get_weather\n{"city": "Łódź"}'),
    "no format": ("google-gemma-2-2b-it", written(GENERIC, [("get_weather", {"city": "Łódź"})])),
}


def form_of(name):
    return derive(PHI) if name == "Phi-4" else format_of(name)
