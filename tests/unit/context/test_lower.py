"""lower(): any transcript becomes a prompt that every vendor's rules accept."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import (
    CompactionPart,
    FilePart,
    Message,
    MessageError,
    Prompt,
    ReasoningPart,
    StepFinishPart,
    StepStartPart,
    TextPart,
    ToolPart,
    ToolPending,
    ToolResultPart,
    ToolUsePart,
    lower,
)
from outrider.context.lower import (
    CONTINUE,
    NOT_FINISHED,
    OPENING,
    ORPHAN,
    OUTPUT_REMOVED,
    PromptProjection,
    end_with_user,
)
from outrider.providers.scripted import (
    anthropic_problems,
    google_problems,
    openai_problems,
    openai_responses_problems,
)
from outrider.types.parts import PartBase
from tests.fixtures.soak import examples
from tests.fixtures.strategies import families

RUNNING = ToolPending({"path": "a"}, phase="ready").start(1)


def user(*parts: PartBase | str) -> Message:
    return Message("user", [TextPart(part) if isinstance(part, str) else part for part in parts])


def assistant(*parts: PartBase | str, **fields: object) -> Message:
    return Message("assistant", [TextPart(part) if isinstance(part, str) else part for part in parts], **fields)  # pyright: ignore[reportArgumentType]


def done(call_id: str, output: str = "ok") -> ToolPart:
    return ToolPart(call_id, "read", RUNNING.complete(output, 2))


def shown(prompt: Prompt) -> list[tuple[str, list[str]]]:
    """A prompt in a form that a test can be read by."""
    return [(message.role, [word(part) for part in message.content]) for message in prompt]


def word(part: object) -> str:
    match part:
        case TextPart():
            return part.text
        case ToolUsePart():
            return f"use {part.tool_id}"
        case ToolResultPart():
            return f"{'error' if part.is_error else 'result'} {part.tool_use_id}: {part.content}"
        case ReasoningPart():
            return f"reasoning {part.text}"
        case FilePart():
            return f"file {part.url}"
        case _:
            raise AssertionError(part)


def structure(prompt: Prompt) -> list[object]:
    """Returns the content of a prompt without ids (synthetic parts get new ids each time)."""
    return [
        (message.role, [msgspec.structs.replace(part, id="", session_id="", message_id="") for part in message.content])
        for message in prompt
    ]


texts = st.sampled_from(["", " ", "a", "b"])
states = st.sampled_from(
    [
        ToolPending(raw="{"),
        RUNNING,
        RUNNING.complete("x", 2),
        RUNNING.complete("x", 2).compact(3),
        RUNNING.fail("no", 2),
    ]
)
private = st.sampled_from([{}, {"google": {"thought_signature": "s"}}])
some_parts = st.one_of(
    st.builds(TextPart, texts, st.booleans(), st.booleans(), metadata=private),
    st.builds(ReasoningPart, texts, provider_state=families.map(lambda family: {"family": family, "signature": "s"})),
    st.builds(
        ToolPart, st.sampled_from(["", "a", "a_2", "b"]), st.sampled_from(["", "read", "bad name!", "n" * 99]), states
    ),
    st.builds(FilePart, st.just("image/png"), st.just("https://example.org/a.png"), metadata=private),
    st.builds(StepStartPart),
    st.builds(StepFinishPart, st.just("stop")),
    st.builds(CompactionPart, summary=texts),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Any list of messages, small; now and then a compaction points at one of them."""
    shapes = st.tuples(st.sampled_from(["user", "assistant"]), st.lists(some_parts, max_size=4))
    history = [
        Message(role, parts, finish=draw(st.sampled_from([None, "stop", "length"])))  # pyright: ignore[reportArgumentType]
        for role, parts in draw(st.lists(shapes, max_size=7))
    ]
    if history and draw(st.booleans()):
        tail = draw(st.sampled_from(history)).id
        draw(st.sampled_from(history)).add_part(CompactionPart(summary="s", tail_start_id=tail))
    return history


VENDORS = {
    "anthropic": anthropic_problems,
    "openai-chat/gpt": openai_problems,
    "openai-responses": openai_responses_problems,
    "google": google_problems,
}


@pytest.mark.parametrize("family", VENDORS)
@settings(max_examples=examples(100))
@given(history=histories())
def test_any_transcript_follows_the_pairing_and_role_rules_of_every_vendor(family, history):
    prompt = end_with_user(lower(history, family=family), history)
    assert not list(VENDORS[family](prompt))


@given(histories(), families)
def test_every_use_has_exactly_one_result_in_the_next_message(history, family):
    prompt = lower(history, family=family)
    for position, message in enumerate(prompt):
        uses = [part.tool_id for part in message.content if isinstance(part, ToolUsePart)]
        following = prompt[position + 1].content if position + 1 < len(prompt) else ()
        results = [part.tool_use_id for part in following if isinstance(part, ToolResultPart)]
        assert uses == results
    all_uses = [part.tool_id for message in prompt for part in message.content if isinstance(part, ToolUsePart)]
    assert len(all_uses) == len(set(all_uses))


@given(histories(), families)
def test_lowering_changes_nothing_in_the_transcript(history, family):
    before = [message.to_dict() for message in history]
    lower(history, family=family)
    assert [message.to_dict() for message in history] == before


@settings(max_examples=examples(100))
@given(histories(), families, st.data())
def test_a_growing_prompt_equals_a_fresh_one_at_every_turn(history, family, data):
    projection = PromptProjection(family)
    end = 0
    while end < len(history):
        end = data.draw(st.integers(end + 1, len(history)))
        assert structure(projection.prompt(history[:end])) == structure(lower(history[:end], family=family))


def test_text_and_calls_take_turns_in_the_right_roles():
    history = [user("read a"), assistant("ok", done("1"), done("2", "two")), assistant("finished"), user("thanks")]
    assert shown(lower(history, family="x")) == [
        ("user", ["read a"]),
        ("assistant", ["ok", "use 1", "use 2"]),
        ("user", ["result 1: ok", "result 2: two"]),
        ("assistant", ["finished"]),
        ("user", ["thanks"]),
    ]


def test_ignored_text_is_left_out_and_synthetic_text_goes_in():
    history = [user(TextPart("for people", ignored=True), TextPart("for the model", synthetic=True))]
    assert shown(lower(history, family="x")) == [("user", ["for the model"])]


def test_results_come_before_the_next_input():
    history = [user("go"), assistant(done("1")), user("and hurry")]
    assert shown(lower(history, family="x"))[-1] == ("user", ["result 1: ok", "and hurry"])


@pytest.mark.parametrize("state", [ToolPending(raw='{"pa'), ToolPending(phase="awaiting_approval"), RUNNING])
def test_an_open_call_gets_a_result_that_reports_an_unknown_effect(state):
    history = [user("go"), assistant(ToolPart("1", "shell", state))]
    assert shown(lower(history, family="x"))[-1] == ("user", [f"error 1: {NOT_FINISHED}"])


def test_an_error_is_returned_to_the_model_with_its_text():
    history = [user("go"), assistant(ToolPart("1", "shell", RUNNING.fail("no such file", 2)))]
    assert shown(lower(history, family="x"))[-1] == ("user", ["error 1: no such file"])


def test_files_and_images_keep_their_place():
    image = FilePart("image/png", "https://example.org/a.png")
    history = [user("before", image, "after")]
    assert shown(lower(history, family="x")) == [("user", ["before", "file https://example.org/a.png", "after"])]


def test_reasoning_goes_back_only_to_the_family_that_wrote_it():
    reasoning = ReasoningPart("hm", provider_state={"family": "anthropic", "signature": "s"})
    history = [user("go"), assistant(reasoning, "ok"), user("more")]
    assert shown(lower(history, family="anthropic"))[1] == ("assistant", ["reasoning hm", "ok"])
    assert shown(lower(history, family="google"))[1] == ("assistant", ["ok"])


@pytest.mark.parametrize("fields", [{"error": MessageError("aborted", "x")}, {"finish": "length"}])
def test_reasoning_at_the_end_of_an_answer_that_broke_off_is_left_out(fields):
    reasoning = ReasoningPart("hm", provider_state={"family": "anthropic", "signature": "s"})
    history = [user("go"), assistant("so far", reasoning, **fields), user("go on")]
    assert shown(lower(history, family="anthropic"))[1] == ("assistant", ["so far"])


@pytest.mark.parametrize(
    ("metadata", "stays"),
    [
        ({"signature": "s"}, False),
        ({"block": {"type": "redacted_thinking", "data": "x"}}, False),
        ({"item": {"type": "reasoning", "encrypted_content": "x"}}, False),
        ({"item": {"type": "web_search_call"}}, True),
        ({"block": {"type": "server_tool_use"}}, True),
        ({"part": {"codeExecutionResult": {}}}, True),
    ],
)
def test_an_answer_does_not_end_with_a_thought(metadata: dict[str, object], stays: bool):
    last = ReasoningPart("hm", provider_state={"family": "x", **metadata})
    history = [user("go"), assistant("so far", last, finish="stop"), user("go on")]
    assert len(lower(history, family="x")[1].content) == (2 if stays else 1)


def test_a_result_names_its_tool_like_the_call_does():
    history = [user("go"), assistant(ToolPart("1", "default api:read", RUNNING.complete("ok", 2)))]
    use, result = (message.content[0] for message in lower(history, family="x")[1:])
    assert (use.tool_name, result.tool_name) == ("default_api_read", "default_api_read")


def test_a_result_in_a_users_message_goes_to_its_call():
    call, other = ToolUsePart(tool_id="1", tool_name="read"), ToolUsePart(tool_id="2", tool_name="read")
    answers = user("wait", ToolResultPart(tool_use_id="1", content="one"), ToolResultPart(tool_use_id="9", content="?"))
    history = [user("go"), assistant(call, other), answers, user("more")]
    assert shown(lower(history, family="x"))[2:] == [
        ("user", ["result 1: one", f"error 2: {NOT_FINISHED}", "wait", ORPHAN.format(content="?"), "more"]),
    ]
    growing = PromptProjection("x")
    for length in range(1, len(history) + 1):
        assert shown(growing.prompt(history[:length])) == shown(lower(history[:length], family="x"))


def test_what_was_reported_after_a_result_stays_after_it():
    history = [
        user("go"),
        assistant(StepStartPart(), "first", done("1"), StepFinishPart("tool_use"), StepStartPart(), "then"),
    ]
    assert shown(lower(history, family="x")) == [
        ("user", ["go"]),
        ("assistant", ["first", "use 1"]),
        ("user", ["result 1: ok"]),
        ("assistant", ["then"]),
    ]


def test_a_compaction_replaces_what_it_summarises():
    tail = user("the last question")
    history = [
        user("old"),
        assistant(done("1")),
        tail,
        assistant(CompactionPart(summary="did 1", tail_start_id=tail.id)),
    ]
    assert shown(lower([*history, user("next")], family="x")) == [
        (
            "user",
            [
                "Summary of the conversation so far; the messages it stands for were removed:\n\ndid 1",
                "the last question",
                "next",
            ],
        ),
    ]


def test_the_last_compaction_applies_and_one_without_a_summary_does_not():
    history = [
        user("a"),
        user(CompactionPart(summary="first")),
        user("b"),
        user(CompactionPart(summary="second")),
        user("c"),
        user(CompactionPart(summary="")),
    ]
    (message,) = shown(lower(history, family="x"))
    assert message[1][0].endswith("second")
    assert message[1][1:] == ["c"]


def test_a_compacted_output_leaves_the_prompt_and_stays_in_the_transcript():
    call = ToolPart("1", "read", RUNNING.complete("long", 2).compact(3))
    history = [user("go"), assistant(call)]
    assert shown(lower(history, family="x"))[-1] == ("user", [f"result 1: {OUTPUT_REMOVED}"])
    assert history[1].parts[0].state.output == "long"


def test_a_history_that_starts_with_an_answer_gets_an_opening():
    assert shown(lower([assistant("hello")], family="x")) == [("user", [OPENING]), ("assistant", ["hello"])]


def test_empty_messages_leave_no_trace():
    history = [user("a"), assistant(), assistant("  "), user("", "b")]
    assert shown(lower(history, family="x")) == [("user", ["a", "b"])]


def test_the_same_call_id_twice_is_distinguished():
    history = [user("go"), assistant(done("a"), done("a", "other")), assistant(done("a_2"), done(""))]
    uses = [
        part.tool_id
        for message in lower(history, family="x")
        for part in message.content
        if isinstance(part, ToolUsePart)
    ]
    assert uses[:3] == ["a", "a_2", "a_2_2"]
    assert len(set(uses)) == 4


def test_a_turn_appends_to_the_prompt_of_the_turn_before_it():
    encoded: list[int] = []

    def encode(message: object) -> bytes:
        encoded.append(1)
        return msgspec.json.encode(message)

    projection = PromptProjection("x")
    history = [user("go")]
    before = bytes(projection.prompt(history).encoded("json", encode))
    for turn in range(20):
        history += [assistant(f"step {turn}", done(f"c{turn}"))]
        encoded.clear()
        after = bytes(projection.prompt(history).encoded("json", encode))
        assert after.startswith(before)
        assert len(encoded) == 2
        before = after


def test_a_compaction_starts_a_new_prefix():
    projection = PromptProjection("x")
    history = [user("go"), assistant("a")]
    first = projection.prompt(history)
    history += [user(CompactionPart(summary="all")), user("b")]
    assert projection.prompt(history) is not first
    assert len(first) == 2


@pytest.mark.parametrize("history", [[], [Message("user", [TextPart("  ")])]])
def test_an_empty_user_message_still_opens_the_conversation(history):
    """Instructions alone may be all there is; no API takes a request without a message."""
    assert shown(lower(history, family="x")) == [("user", [OPENING])]
    assert not list(anthropic_problems(lower(history, family="x")))


def test_what_is_sent_ends_with_the_user_unless_the_vendor_paused():
    history = [user("go"), assistant("a")]
    prompt = lower(history, family="x")
    assert shown(end_with_user(prompt, history))[-1] == ("user", [CONTINUE])
    assert len(prompt) == 2
    assert end_with_user(prompt[:0] or lower(history[:1], family="x"), history[:1])[-1].role == "user"
    history[-1].metadata["paused"] = True
    assert end_with_user(prompt, history) is prompt


def test_withdrawn_parts_are_not_sent():
    withdrawn = {"metadata": {"withdrawn": True}}
    call = ToolPart("c1", "look", ToolPending().fail("not run", 1, reason="canceled"), {"withdrawn": True})
    parts = [TextPart("par", ignored=True, **withdrawn), ReasoningPart("hm", **withdrawn), call, TextPart("whole")]
    assert shown(lower([user("go"), Message("assistant", parts)], family="x")) == [
        ("user", ["go"]),
        ("assistant", ["whole"]),
    ]
