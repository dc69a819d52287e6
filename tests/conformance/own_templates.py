"""Templates of our own making that use what templates of models use, each something else."""

from __future__ import annotations

OWN_TEMPLATES = {
    "plain turns": """\
{{ bos_token }}
{% for m in messages %}
    {% if m.role == 'system' %}
<<{{ m.content | trim }}>>
    {% else %}
{{ m.role | upper }}: {{ m['content'] }}{{ eos_token }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}ASSISTANT:{% endif %}
""",
    "minus signs": """\
{%- for m in messages -%}
  {{- '[' + m.role + '] ' -}}
  {%- if m.content is string %}{{ m.content }}{%- else -%}
    {%- for p in m.content or [] %}{{ p.text }}{{ ';' if not loop.last }}{% endfor -%}
  {%- endif %}
  {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %} {{- '[assistant]' }} {%- endif %}
""",
    "loop controls": """\
{% for m in messages %}{% if loop.index0 > 3 %}{% break %}{% endif %}
{% if m.role == 'system' %}{% continue %}{% endif %}
{{ loop.index }}/{{ loop.length }}{{ ' first' if loop.first }}{{ ' last' if loop.last }}
{{ loop.previtem.role if loop.previtem is defined }}>{{ m.role }}
{% else %}
nobody
{% endfor %}
""",
    "generation blocks": """\
{% for m in messages %}
{% if m.role == 'assistant' %}
{% generation %}
{% set inner = 'set inside' %}
{{ m.content }}{{ eos_token }}
{% endgeneration %}
{% else %}
{{ m.role }}: {{ m.content }}
{% endif %}
{% endfor %}
{{ inner is defined }}
""",
    "ways to write json": """\
{% if tools %}
{{ tools | tojson }}
{{ tools | tojson(indent=2) }}
{{ tools | tojson(4) }}
{{ tools | tojson(ensure_ascii=True) }}
{{ tools | tojson(separators=(',', ':')) }}
{{ tools | tojson(sort_keys=true, indent=1) }}
{% for tool in tools %}{{ tool.function.name }}: {{ tool['function'].description | e }}
{% for name, schema in tool.function.parameters.properties.items() %}
  {{ name }} = {{ schema | string }} {{ schema.type is defined }}
{% endfor %}
{% endfor %}
{% endif %}
{{ messages | tojson }}
""",
    "macros and namespaces": """\
{% macro turn(role, content='', closed=true) %}
{{ '<' ~ role ~ '>' }}{{ content }}{{ '</' ~ role ~ '>' if closed }}
{% endmacro %}
{% macro shell() %}({{ caller() }}){% endmacro %}
{% set ns = namespace(seen=0, system='', roles=[]) %}
{% for m in messages %}
{% if m.role == 'system' %}{% set ns.system = m.content %}{% else %}
{% set ns.seen = ns.seen + 1 %}
{% set ns.roles = ns.roles + [m.role] %}
{{ turn(m.role, m.content | string) }}
{% endif %}
{% endfor %}
{% call shell() %}{{ ns.seen }} {{ ns.system | length }}{% endcall %}

{{ ns.roles | unique | join(', ') }} {{ ns.roles[-1] }} {{ ns.roles[::-1] | list }}
{% set block %}
  kept as it is
{% endset %}
{{ block | trim | capitalize }}
""",
    "raises": """\
{% for m in messages %}
{% if m.role == 'developer' %}{{ raise_exception('no developers: ' ~ m.content) }}{% endif %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('turns must alternate') }}
{% endif %}
{{ m.role }}:{{ m.content }}
{% endfor %}
""",
    "the date": "{{ strftime_now('%Y') }}-{{ strftime_now('%m %B %b') }}{{ strftime_now('%Z') }}",
    "calls": """\
{% for m in messages %}
<|{{ m.role }}|>
{%- if m.reasoning_content is defined and m.reasoning_content %}
<think>{{ m.reasoning_content.strip('\\n') }}</think>{% endif %}
{%- if m.content %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}
{%- for call in m.tool_calls or [] %}
{%- set f = call.function if call.function is defined else call %}
<call id="{{ call.id }}">{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</call>
{%- endfor %}
{%- if m.role == 'tool' %}<result of="{{ m.tool_call_id }}">{{ m.name }}</result>{% endif %}
<|end|>
{% endfor %}
{% if add_generation_prompt %}<|assistant|>
{% if enable_thinking is defined and enable_thinking is false %}
<think>

</think>

{% endif %}
{% endif %}
""",
    "absent things": """\
{% if not tools is defined %}{% set tools = none %}{% endif %}
{% if tools is not none and tools %}{{ tools | length }} tools{% endif %}
{% if documents %}{{ documents[0].title }}{% endif %}
{{ reasoning_effort | default('medium') }} {{ thinking is defined }}
{{ messages[0].nothing }}{{ messages[0].get('nothing', 'default') }}
{{ (messages | selectattr('role', 'equalto', 'user') | list | length) }}
{{ messages | map(attribute='role') | join(' ') }}
{{ messages | rejectattr('name') | list | count }}
""",
    "texts": """\
{% set t = messages[-1].content | string %}
{{ t.strip() }}|{{ t.rstrip() }}|{{ t.replace('a', 'b') }}|{{ t.upper() }}|{{ t.title() }}
{{ t.startswith('H') }} {{ 'x' in t }} {{ t[:3] }} {{ t[-3:] }} {{ t.split(' ') }} {{ t | length }}
{{ '%s-%05d' % (t, 42) }} {{ '{}:{:>5}'.format(t, 'x') }} {{ t ~ 1 ~ none ~ true ~ [1, 'a'] }}
{{ t | replace('o', '0') | lower | center(30) }}|{{ t | indent(2) }}|{{ t | wordcount }}
{{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ -3 | abs }} {{ 3.7 | round | int }}
{{ [3, 1, 2] | sort | first }} {{ {'b': 1, 'a': 2} | dictsort }} {{ {'k': 'v'}.items() | list }}
{{ dict(a=1, b=[none, true]) }} {{ range(5) | batch(2) | list }} {{ [1, 2] + [3] }} {{ 'ab' * 3 }}
{{ none }} {{ true }} {{ 1.0 }} {{ 1 if false }} {{ 'a' if t else 'b' }} {{ t is string }}
{{ messages is iterable }} {{ messages[0] is mapping }} {{ none is none }} {{ 3 is odd }}
""",
}
