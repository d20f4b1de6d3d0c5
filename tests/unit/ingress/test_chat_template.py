"""A chat becomes the text that engines make of it."""

import json
from typing import Any

import jinja2
import pytest
import tiny_tokenizers as tiny

from ingress.tokenization.chat import Chat, UnknownPromptError, chat_of, conversation
from ingress.tokenization.template import ChatTemplate
from ingress.validation import ChatBody, parse

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "odd": 1}, "odd": 2}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
LOOP = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"


def chat(*messages: dict[str, Any], **fields: Any) -> Chat:
    body = parse("chat", json.dumps({"model": "m", "messages": messages or [USER], **fields}).encode()).fields
    assert isinstance(body, ChatBody)
    return chat_of(body)


def rendered(source: str, *messages: dict[str, Any], **fields: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(chat(*messages, **fields))


class TestVariables:
    def test_a_new_message_is_asked_for_unless_told_otherwise(self) -> None:
        source = "{{ add_generation_prompt }}{{ continue_final_message }}"
        assert rendered(source) == "TrueFalse"
        assert rendered(source, add_generation_prompt=False) == "FalseFalse"

    def test_the_requests_own_fields_go_before_its_template_variables(self) -> None:
        given = {"add_generation_prompt": False, "color": "red", "bos_token": "!"}
        assert (
            rendered("{{ add_generation_prompt }}{{ color }}{{ bos_token }}", chat_template_kwargs=given)
            == "Truered!"
        )

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({}, "undefined"),
            ({"reasoning_effort": "none"}, "False"),
            ({"reasoning_effort": "low"}, "True"),
            ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "False"),
            ({"chat_template_kwargs": {"enable_thinking": None}}, "undefined"),
        ],
    )
    def test_reasoning_effort_decides_on_thinking_unless_that_is_given(
        self, fields: dict[str, Any], text: str
    ) -> None:
        source = "{{ enable_thinking if enable_thinking is defined else 'undefined' }}"
        assert rendered(source, **fields) == text

    def test_tools_are_shown_with_the_fields_engines_know_and_no_others(self) -> None:
        shown = rendered("{{ tools | tojson }}", tools=[TOOL])
        function = {"name": "f", "description": None, "parameters": {"type": "object"}}
        assert json.loads(shown) == [{"type": "function", "function": function}]
        assert list(json.loads(shown)[0]["function"]) == ["name", "description", "parameters"]

    def test_json_is_not_escaped_for_html(self) -> None:
        tool = {"type": "function", "function": {"name": "f", "description": "<é>'"}}
        assert "<é>'" in rendered("{{ tools | tojson }}", tools=[tool])


class TestMessages:
    PARTS = ({"type": "text", "text": "a"}, "b", {"type": "output_text", "text": "c"})

    def test_parts_become_one_string_with_a_line_each(self) -> None:
        assert rendered(LOOP, {"role": "user", "content": [*self.PARTS]}) == "[user:a\nb\nc]"

    def test_parts_without_a_text_give_no_line(self) -> None:
        parts = [{"type": "text", "text": text} for text in ("a", "", "b")] + [{"type": "text", "text": None}]
        assert rendered(LOOP, {"role": "user", "content": parts}) == "[user:a\nb]"

    def test_a_template_that_loops_over_parts_gets_parts_even_of_a_string(self) -> None:
        source = "{% for m in messages %}{% for p in m['content'] %}({{ p.text }}){% endfor %}{% endfor %}"
        assert rendered(source, {"role": "user", "content": [*self.PARTS]}) == "(a)(b)(c)"
        assert rendered(source, USER) == "(hi)"

    def test_a_tools_answer_is_a_string_in_any_case(self) -> None:
        messages = [{"role": "tool", "content": [*self.PARTS], "tool_call_id": "1", "odd": 1}]
        assert conversation(messages, "openai") == [
            {"role": "tool", "content": "a\nb\nc", "tool_call_id": "1"}
        ]

    def test_no_content_is_an_empty_one(self) -> None:
        assert rendered(LOOP, {"role": "assistant", "content": None, "tool_calls": []}) == "[assistant:]"

    def test_arguments_of_calls_are_mappings(self) -> None:
        source = "{{ messages[0].tool_calls[0].function.arguments.x }}"
        assert rendered(source, {"role": "assistant", "content": None, "tool_calls": [CALL]}) == "[1]"

    def test_calls_have_their_fields_in_the_order_engines_put_them(self) -> None:
        shown = rendered(
            "{{ messages[0].tool_calls | tojson }}", {"role": "assistant", "tool_calls": [CALL | {"odd": 1}]}
        )
        assert (
            shown == '[{"id": "1", "function": {"arguments": {"x": [1]}, "name": "f"}, "type": "function"}]'
        )

    @pytest.mark.parametrize("arguments", ["", "not json", "[1]", None])
    def test_arguments_that_are_no_mapping_are_an_empty_one(self, arguments: str | None) -> None:
        call = {**CALL, "function": {"name": "f", "arguments": arguments}}
        messages = conversation([{"role": "assistant", "tool_calls": [call]}], "string")
        assert messages[0]["tool_calls"][0]["function"]["arguments"] == {}

    @pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
    def test_reasoning_is_shown_under_all_its_names(self, name: str) -> None:
        (message,) = conversation([{"role": "assistant", "content": "a", name: "why"}], "string")
        assert message["reasoning"] == message["reasoning_content"] == "why"

    def test_fields_that_engines_drop_do_not_reach_the_template(self) -> None:
        assert conversation([{**USER, "name": "Ann", "odd": 1}], "string") == [{**USER, "name": "Ann"}]

    def test_developers_speak_as_the_system_to_a_template_that_knows_only_that(self) -> None:
        developer = {"role": "developer", "content": "be brief"}
        assert rendered(LOOP, developer, USER) == "[system:be brief][user:hi]"
        later = rendered(LOOP, {"role": "system", "content": "s"}, USER, developer)
        assert later == "[system:s\n\nbe brief][user:hi]"
        assert rendered(LOOP + "{# 'developer' #}", developer) == "[developer:be brief]"


class TestContinuing:
    FIELDS = {"continue_final_message": True, "add_generation_prompt": False}  # noqa: RUF012

    def test_the_prompt_ends_with_the_last_message(self) -> None:
        text = rendered(tiny.CHATML, USER, {"role": "assistant", "content": "It is "}, **self.FIELDS)
        assert text.endswith("<|im_start|>assistant\nIt is ")

    def test_a_template_that_trims_texts_trims_this_one_too(self) -> None:
        text = rendered(tiny.PARTS, USER, {"role": "assistant", "content": "It is "}, **self.FIELDS)
        assert text.endswith("<|im_start|>assistant\nIt is")


class TestSandbox:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ raise_exception('no system message') }}",
            "{{ messages.__class__.__mro__ }}",
            "{{ messages.append(1) }}",
            "{{ undefined_name.field }}",
            "{% for i in range(999999999) %}{% endfor %}",
        ],
    )
    def test_what_a_template_may_not_do_makes_the_prompt_unknown_and_nothing_else(self, source: str) -> None:
        with pytest.raises(UnknownPromptError):
            rendered(source)

    def test_what_hugging_faces_templates_use_is_there(self) -> None:
        source = (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
            "{% set ns = namespace(n=1) %}{{ ns.n }}{{ strftime_now('%Y') | length }}{{ bos_token }}"
        )
        assert rendered(source, USER, USER) == "hi14<s>"

    def test_a_source_that_is_no_template_is_an_error(self) -> None:
        with pytest.raises(jinja2.TemplateError):
            ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    ("source", "takes_parts"),
    [
        (tiny.CHATML, False),
        (tiny.PARTS, True),
        ("{% for m in messages %}{{ m.content }}{% for t in m.tool_calls %}{% endfor %}{% endfor %}", False),
        (
            "{% set rest = messages[1:] %}{% for m in rest %}{% for c in m.content | list %}{% endfor %}{% endfor %}",
            True,
        ),
        (
            "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            True,
        ),
        (
            "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.tool_calls) }}{% endfor %}",
            False,
        ),
        (
            "{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}",
            True,
        ),
    ],
)
def test_whether_a_template_takes_parts_is_told_by_its_loops(source: str, takes_parts: bool) -> None:
    given = "list" if takes_parts else "str"
    probe = source + "{% for m in messages %}{{ 'str' if m.content is string else 'list' }}{% endfor %}"
    assert rendered(probe, {"role": "user", "content": []}).endswith(given)
