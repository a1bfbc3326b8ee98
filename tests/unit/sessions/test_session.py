"""A session in memory: adding, ending calls, the Anthropic format in and out, JSON."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import (
    Attachment,
    EventBus,
    FilePart,
    ForkPoint,
    Message,
    PartValidationError,
    Session,
    TextPart,
    Tokens,
    ToolCompleted,
    ToolError,
    ToolPart,
    ToolPending,
    ToolResultPart,
    validate_part,
)
from outrider.events import MessageAddedEvent
from outrider.types.ids import is_id
from tests.fixtures import strategies
from tests.fixtures.cases import for_each

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


def use(call_id: str, **tool_input: object) -> dict:
    return {"type": "tool_use", "id": call_id, "name": "read", "input": tool_input}


def result(call_id: str, content: object = "ok", **more: object) -> dict:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*content: object) -> dict:
    return {"role": "user", "content": list(content)}


def assistant(*content: object) -> dict:
    return {"role": "assistant", "content": list(content)}


def text(content: str) -> dict:
    return {"type": "text", "text": content}


CONVERSATIONS = {
    "strings": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
    "text blocks": [user(text("hi"), text("again")), assistant(text("hello"))],
    "empty string": [{"role": "user", "content": ""}],
    "no content": [user(), assistant()],
    "an image": [user(text("what is this?"), IMAGE)],
    "an image by address": [user({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}})],
    "tool use": [
        user(text("go")),
        assistant(text("ok"), use("a", path="x")),
        user(result("a")),
        assistant(text("done")),
    ],
    "open call at the end": [user(text("go")), assistant(use("a"))],
    "parallel tool use": [
        user(text("go")),
        assistant(use("a"), use("b"), use("c")),
        user(result("a"), result("b"), result("c")),
    ],
    "results in another order": [user(text("go")), assistant(use("a"), use("b")), user(result("b"), result("a"))],
    "results and a word": [user(text("go")), assistant(use("a")), user(result("a"), text("and hurry"), IMAGE)],
    "results, then another user message": [
        user(text("go")),
        assistant(use("a")),
        user(result("a")),
        user(text("more")),
    ],
    "a tool error": [user(text("go")), assistant(use("a")), user(result("a", "no such file", is_error=True))],
    "an explicit success": [user(text("go")), assistant(use("a")), user(result("a", is_error=False))],
    "an empty result": [user(text("go")), assistant(use("a")), user(result("a", ""))],
    "a result without content": [
        user(text("go")),
        assistant(use("a")),
        user({"type": "tool_result", "tool_use_id": "a"}),
    ],
    "a result with an image": [user(text("go")), assistant(use("a")), user(result("a", [text("see"), IMAGE]))],
    "an error with an image": [
        user(text("go")),
        assistant(use("a")),
        user(result("a", [text("see"), IMAGE], is_error=True)),
    ],
    "an image, then text": [user(text("go")), assistant(use("a")), user(result("a", [IMAGE, text("see")]))],
    "thinking": [
        user(text("go")),
        assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("ok"), use("a")),
        user(result("a")),
    ],
    "redacted thinking": [user(text("go")), assistant({"type": "redacted_thinking", "data": "x"}, text("ok"))],
    "cache marks": [user(text("go") | {"cache_control": {"type": "ephemeral"}}), assistant(text("ok"))],
    "the same call id twice": [
        user(text("go")),
        assistant(use("a")),
        user(result("a", "first")),
        assistant(use("a")),
        user(result("a", "second")),
    ],
    "the results of two assistants in a row": [
        user(text("go")),
        assistant(use("a")),
        assistant(text("and"), use("b")),
        user(result("a"), result("b")),
    ],
    "two assistants in a row": [user(text("go")), assistant(text("a")), assistant(text("b"))],
    "results in two messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [use("a"), use("b")]},
        {"role": "user", "content": [result("a")]},
        {"role": "user", "content": [result("b")]},
    ],
    "a search result": [
        {"role": "user", "content": [{"type": "search_result", "source": "s", "title": "t", "content": [text("x")]}]},
    ],
}


@for_each("name", CONVERSATIONS)
def test_set_messages_then_to_api_format_gives_back_an_equal_list(name):
    session = Session()
    session.set_messages(CONVERSATIONS[name])
    assert session.to_api_format() == CONVERSATIONS[name]
    assert session.get_messages() == CONVERSATIONS[name]
    assert len(session) == len(CONVERSATIONS[name])
    assert Session.from_dict(json.loads(json.dumps(session.to_dict()))).to_api_format() == CONVERSATIONS[name]


blocks = st.sampled_from([text("a"), text("b"), IMAGE])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict]:
    """Any conversation that the API could have had."""
    messages, calls = [], 0
    for _ in range(draw(st.integers(0, 5))):
        content = draw(st.lists(blocks, min_size=1, max_size=2))
        uses = [use(f"c{calls + number}") for number in range(draw(st.integers(0, 3)))]
        calls += len(uses)
        results = draw(st.permutations([result(use["id"], draw(strategies.text)) for use in uses]))
        messages += [user(*content), assistant(text("ok"), *uses)]
        if results:
            messages.append(user(*results, *draw(st.lists(blocks, max_size=1))))
    return messages


@given(conversations())
def test_any_conversation_comes_back_equal(conversation):
    session = Session()
    session.set_messages(conversation)
    assert session.to_api_format() == conversation


def test_a_conversation_is_written_from_parts_with_results_in_their_place():
    session = Session()
    session.add_user_message("read a and b")
    answer = session.add_assistant_message([text("ok"), use("1", path="a"), use("2", path="b")])
    for part in answer.get_parts_by_type(ToolPart):
        session.update_part(part.id, lambda part: part.with_state(part.state.start(1)))
        session.update_part(part.id, lambda part: part.with_state(part.state.complete("text", 2)))
    assert session.to_api_format() == [
        user(text("read a and b")),
        assistant(text("ok"), use("1", path="a"), use("2", path="b")),
        user(result("1", "text"), result("2", "text")),
    ]


def test_adding_results_ends_the_calls_they_answer():
    session = Session()
    session.add_user_message("go")
    answer = session.add_assistant_message([use("a"), use("b")])
    session.add_tool_results([{"tool_use_id": "b", "content": "bad", "is_error": True}, ToolResultPart("a", "fine")])
    first, second = answer.parts
    assert isinstance(first.state, ToolCompleted)
    assert first.state.output == "fine"
    assert isinstance(second.state, ToolError)
    assert second.state.error == "bad"
    assert session.to_api_format()[-1] == user(result("b", "bad", is_error=True), result("a", "fine"))


def test_a_result_that_answers_no_open_call_is_refused_and_changes_nothing():
    session = Session()
    session.add_user_message("go")
    answer = session.add_assistant_message([use("a")])
    with pytest.raises(PartValidationError, match="no open call 'zzz'"):
        session.add_tool_results([result("a"), result("zzz")])
    assert isinstance(answer.parts[0].state, ToolPending)
    assert len(session) == 2


def test_a_result_whose_call_was_cut_away_is_preserved_as_text():
    session = Session()
    session.set_messages([user(result("gone", "42")), assistant(text("ok"))])
    assert session.to_api_format()[0] == user(text("(result of a call that is no longer here)\n42"))


def test_a_call_in_the_middle_that_never_got_a_result_gets_one():
    session = Session()
    session.set_messages([user(text("go")), assistant(use("a")), user(text("well?"))])
    _, _, third = session.to_api_format()
    assert third["content"][0] == result("a", "(The result of this call is not known.)", is_error=True)
    assert third["content"][1] == text("well?")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "x"}],
        [{"content": "x"}],
        [user({"type": "bogus"})],
        [user(text("fine")), assistant({"type": "tool_use", "id": "a"})],
    ],
)
def test_messages_that_cannot_be_read_change_nothing_and_say_which_one(messages):
    session = Session()
    session.add_user_message("before")
    with pytest.raises(PartValidationError, match=r"messages\[\d\]"):
        session.set_messages(messages)
    assert session.to_api_format() == [user(text("before"))]


def test_a_user_message_may_be_text_or_parts():
    session = Session()
    message = session.add_user_message(
        ["look at", FilePart("image/png", "data:image/png;base64,QUJD"), TextPart("please")]
    )
    assert message.to_api_format() == user(text("look at"), IMAGE, text("please"))


@pytest.mark.slow
def test_a_whole_sdk_response_can_be_added():
    anthropic = pytest.importorskip("anthropic.types")
    response = anthropic.Message(
        id="m",
        type="message",
        role="assistant",
        model="claude",
        content=[anthropic.TextBlock(type="text", text="hi")],
        usage=anthropic.Usage(input_tokens=1, output_tokens=1),
    )
    assert Session().add_assistant_message(response).get_text_content() == "hi"


def test_every_stored_part_of_a_session_is_valid_once_it_was_added():
    session = Session()
    session.add_user_message("go")
    session.add_assistant_message([text("ok"), use("a")])
    session.add_tool_results([result("a", [text("x"), IMAGE])])
    for message in session.messages:
        message.validate()
        for part in message.parts:
            validate_part(part)
            assert part.session_id == session.id
    assert session.messages[1].parts[1].state.attachments == (Attachment("image/png", "QUJD"),)
    assert is_id(session.id)


def test_a_bus_is_informed_of_every_message():
    bus, received = EventBus(), []
    bus.subscribe(MessageAddedEvent, received.append)
    session = Session(event_bus=bus)
    session.add_user_message("go")
    session.add_assistant_message([text("ok"), use("a")])
    session.add_tool_results([result("a")])
    assert [(event.role, event.part_count, event.session_id) for event in received] == [
        ("user", 1, session.id),
        ("assistant", 2, session.id),
        ("user", 1, session.id),
    ]


def test_the_content_of_a_message_can_be_one_part_or_one_block():
    session = Session()
    assert session.add_user_message(TextPart("a")).get_text_content() == "a"
    assert session.add_assistant_message(TextPart("b")).get_text_content() == "b"
    assert session.add_assistant_message(text("c")).get_text_content() == "c"
    assert session.add_assistant_message(iter([text("d"), text("e")])).get_text_content() == "d\ne"
    for add in (session.add_user_message, session.add_assistant_message):
        with pytest.raises(PartValidationError, match="text or parts"):
            add(None)


def test_a_session_can_be_made_with_its_messages():
    message = Message("user", [TextPart("a")])
    session = Session(messages=[message])
    assert (len(session), message.session_id, message.parts[0].session_id) == (1, session.id, session.id)


@pytest.mark.parametrize("value", [{"messages": 3}, {"messages": ["x"]}, {"time": 3}, {"forked_from": 3}])
def test_a_session_that_cannot_be_read_is_refused(value):
    with pytest.raises(PartValidationError):
        Session.from_dict(value)


def test_usage_adds_up_and_an_unknown_price_makes_the_cost_unknown():
    session = Session()
    assert session.usage.total_cost == 0
    session.add_assistant_message("a", tokens=Tokens(input=10, output=5), cost=Decimal("0.1"))
    session.add_assistant_message("b", tokens=Tokens(input=1, output=2), cost=Decimal("0.2"))
    session.add_assistant_message("written by hand")
    assert (session.usage.tokens.input, session.usage.tokens.output) == (11, 7)
    assert session.usage.total_cost == Decimal("0.3")
    session.add_assistant_message("c", tokens=Tokens(input=1))
    assert session.usage.total_cost is None


@given(st.lists(strategies.messages(), max_size=5), strategies.text)
def test_a_session_survives_json_exactly(messages, title):
    session = Session(title=title, mode="plan", forked_from=ForkPoint("s", "m"))
    for message in messages:
        session.add_message(message)
    again = Session.from_dict(json.loads(json.dumps(session.to_dict())))
    assert again == session
    assert again.to_dict() == session.to_dict()


def test_a_session_of_a_newer_format_is_refused():
    with pytest.raises(PartValidationError, match="format 99"):
        Session.from_dict(Session().to_dict() | {"format": 99})


def test_clear_empties_the_session_in_memory():
    session = Session()
    session.add_user_message("x")
    session.clear()
    assert len(session) == 0
    assert session.to_api_format() == []


def test_an_update_of_a_part_that_is_not_there_is_refused():
    with pytest.raises(PartValidationError, match="has no part"):
        Session().update_part("nowhere", lambda part: part)
