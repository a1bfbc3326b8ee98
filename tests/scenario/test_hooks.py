"""Hooks: callables of a program's own see calls, messages and stops, and may change their course."""

import asyncio
from typing import Any

import pytest

from outrider import (
    CallbackError,
    Engine,
    HookDecision,
    HookedCall,
    HookedPrompt,
    HookedStop,
    Hooks,
    Limits,
    Message,
    OutputUnavailableError,
    OutriderError,
    Tool,
    ToolCompleted,
    ToolError,
    ToolPart,
    async_run_stream,
    run_stream,
)
from outrider.events import ErrorEvent, LoopCompletedEvent
from tests.scenario.scripted_runs import Story, agent, call, scripted


def calls_of(session) -> list[ToolPart]:
    return [part for message in session.messages for part in message.get_parts_by_type(ToolPart)]


ECHO = Tool(lambda text: f"said {text}", name="echo")


async def test_what_a_hook_makes_of_the_input_is_what_is_decided_on_shown_and_run():
    decided: list[dict] = []
    risky = Tool(lambda path: f"read {path}", name="risky", policy="ask")

    def redirect_call(seen: HookedCall):
        return {"path": f"safe/{seen.input['path']}"}

    def approve(request):
        decided.append(request.input)
        return True

    story = Story([[call("risky", path="a")], "done"])
    result = await story.run(tools=[risky], hooks=Hooks(before_call=redirect_call), approve=approve)
    (part,) = calls_of(result.session)
    assert decided == [{"path": "safe/a"}]
    assert part.state.input == {"path": "safe/a"}
    assert part.state.output == "read safe/a"  # pyright: ignore


async def test_a_rule_is_held_against_the_input_after_the_hook():
    tight = Tool(
        lambda path: f"read {path}",
        name="tight",
        evaluate_policy=lambda base, args: "deny" if args["path"] == "secret" else base,
    )
    story = Story([[call("tight", path="a")], "done"])
    result = await story.run(tools=[tight], hooks=Hooks(before_call=lambda _: {"path": "secret"}))
    (part,) = calls_of(result.session)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "denied"


async def test_a_changed_input_is_prepared_like_any_other():
    tool = Tool(lambda text: text, name="echo", preprocess_args=lambda args: {"text": args["text"].strip()})
    story = Story([[call("echo", text="a")], "done"])
    result = await story.run(tools=[tool], hooks=Hooks(before_call=lambda _: {"text": "  b  "}))
    assert calls_of(result.session)[0].state.output == "b"  # pyright: ignore


async def test_a_hook_denies_a_call_with_a_message_and_the_turn_continues():
    ran: list[str] = []
    tool = Tool(lambda text: str(ran.append(text)), name="echo")

    async def refuse(seen: HookedCall):
        await asyncio.sleep(0)
        return f"{seen.agent} may not call {seen.tool}"

    story = Story([[call("echo", text="a")], lambda request: request.prompt[-1].content[0].content])
    result = await story.run(tools=[tool], hooks=Hooks(before_call=refuse))
    assert ran == []
    assert result.output == "This call was refused: writer may not call echo"
    assert calls_of(result.session)[0].state.reason == "denied"  # pyright: ignore


@pytest.mark.parametrize("value", [7, ["a"], False])
async def test_what_cannot_be_an_input_refuses_the_call(value):
    story = Story([[call("echo", text="a")], "done"])
    result = await story.run(tools=[ECHO], hooks=Hooks(before_call=lambda _: value))
    assert isinstance(calls_of(result.session)[0].state, ToolError)


async def test_a_hook_that_raises_before_a_call_refuses_it_and_is_reported():
    def fail(_):
        raise RuntimeError("no such policy")

    story = Story([[call("echo", text="a")], "done"])
    result = await story.run(tools=[ECHO], hooks=Hooks(before_call=fail))
    (part,) = calls_of(result.session)
    assert isinstance(part.state, ToolError)
    assert "no such policy" in part.state.error
    assert result.output == "done"
    assert [event.error_type for event in story.events_of(ErrorEvent)] == ["HookFailed"]


async def test_what_a_hook_makes_of_a_result_is_preserved_and_read():
    seen: list[HookedCall] = []

    def redact(ended: HookedCall):
        seen.append(ended)
        return ended.output.replace("secret", "***")

    story = Story([[call("echo", "c1", text="secret")], lambda request: request.prompt[-1].content[0].content])
    result = await story.run(tools=[ECHO], hooks=Hooks(after_call=redact))
    assert result.output == "said ***"
    assert calls_of(result.session)[0].state.output == "said ***"  # pyright: ignore
    assert [(one.tool, one.call_id, one.output, one.is_error) for one in seen] == [("echo", "c1", "said secret", False)]


async def test_a_hook_sees_failures_too_and_may_replace_their_text():
    def boom() -> str:
        raise ValueError("at /home/me")

    def shorter(ended: HookedCall):
        return "it failed" if ended.is_error else None

    story = Story([[call("boom")], "done"])
    result = await story.run(tools=[Tool(boom)], hooks=Hooks(after_call=shorter))
    state = calls_of(result.session)[0].state
    assert isinstance(state, ToolError)
    assert (state.error, state.reason) == ("it failed", "failed")


async def test_a_hook_that_raises_after_a_call_leaves_the_result_as_it_is():
    def fail(_):
        raise RuntimeError("oops")

    story = Story([[call("echo", text="a")], "done"])
    result = await story.run(tools=[ECHO], hooks=Hooks(after_call=fail))
    assert isinstance(calls_of(result.session)[0].state, ToolCompleted)
    assert "oops" in story.events_of(ErrorEvent)[0].message
    assert story.events_of(LoopCompletedEvent)[0].termination_reason == "completed"


async def test_a_hook_cannot_change_a_call_without_the_session_recording_it():
    def spoil(seen: HookedCall):
        seen.input["text"] = "changed"

    story = Story([[call("echo", text="a")], "done"])
    result = await story.run(tools=[ECHO], hooks=Hooks(before_call=spoil))
    assert calls_of(result.session)[0].state.output == "said a"  # pyright: ignore


async def test_every_message_is_seen_once_and_whole():
    seen: list[tuple[str, str, int]] = []

    def look(message: Message):
        ended = [part for part in message.get_parts_by_type(ToolPart) if part.ended]
        seen.append((message.role, message.get_text_content(), len(ended)))

    story = Story([["thinking", call("echo", text="a")], "done"])
    await story.run("go", tools=[ECHO], hooks=Hooks(on_message=look))
    assert seen == [("user", "go", 0), ("assistant", "thinking", 1), ("assistant", "done", 0)]


async def test_a_finished_agent_continues_with_the_text_of_a_hook():
    stops: list[HookedStop] = []

    def test_first(stop: HookedStop):
        stops.append(stop)
        return "Run the tests first." if len(stops) == 1 else None

    story = Story(["done", lambda request: f"ran them because: {request.prompt[-1].content[-1].text}"])
    result = await story.run(hooks=Hooks(on_stop=test_first))
    assert result.output == "ran them because: Run the tests first."
    assert [stop.reason for stop in stops] == ["completed", "completed"]
    assert len(story.events_of(LoopCompletedEvent)) == 1


async def test_an_agent_that_finished_is_sent_on_too():
    asked: list[str] = []

    def once(stop: HookedStop):
        asked.append(stop.output)
        return "not yet" if len(asked) == 1 else ""

    story = Story([[call("finish", message="first")], [call("finish", message="second")]])
    assert (await story.run(hooks=Hooks(on_stop=once))).output == "second"
    assert asked == ["first", "second"]


async def test_a_hook_that_never_lets_go_meets_the_limit_of_turns():
    story = Story(lambda _: "done")
    result = await story.run(hooks=Hooks(on_stop=lambda _: "go on"), limits=Limits(turns=3))
    assert result.termination_reason == "limit"


async def test_an_early_end_is_reported_and_cannot_be_undone():
    reasons: list[str] = []

    def stop_hook(stop: HookedStop):
        reasons.append(stop.reason)
        return "go on"

    story = Story(lambda _: [call("echo", text="a")])
    result = await story.run(tools=[ECHO], hooks=Hooks(on_stop=stop_hook), limits=Limits(repeats=3))
    assert (result.termination_reason, reasons) == ("repetition", ["repetition"])


async def test_agents_that_are_called_have_the_same_hooks():
    seen: list[tuple[str, str]] = []
    clerk = agent("clerk", "You help.")
    story = Story(
        [[call("call_agent", agent_name="clerk", message="help")], [call("echo", text="a")], "helped", "all done"]
    )
    hooks = Hooks(before_call=lambda seen_call: seen.append((seen_call.agent, seen_call.tool)))
    await story.run(agents=[clerk], tools=[ECHO], hooks=hooks)
    assert seen == [("writer", "call_agent"), ("clerk", "echo")]


async def test_an_engine_takes_hooks_too():
    script = scripted([[call("echo", text="a")], "done"])
    hooks = Hooks(after_call=lambda ended: ended.output.upper())
    async with Engine([agent()], [script], [ECHO], hooks=hooks) as held:
        session = await held.create()
        await held.prompt(session, "go")
        assert calls_of(await held.open(session))[0].state.output == "SAID A"  # pyright: ignore


async def test_a_run_passes_its_message_to_the_hook_and_the_model_reads_what_it_adds():
    seen: list[HookedPrompt] = []

    def add(prompt: HookedPrompt) -> str:
        seen.append(prompt)
        return "It is Monday."

    story = Story(lambda request: " | ".join(part.text for part in request.prompt[0].content))
    result = await story.run("What day is it?", hooks=Hooks(on_prompt=add))
    assert result.output.startswith("What day is it? | It is Monday.")
    assert [(prompt.text, prompt.is_first) for prompt in seen] == [("What day is it?", True)]


async def test_a_run_whose_message_a_hook_refuses_sends_nothing():
    story = Story(["never"])
    with pytest.raises(OutriderError, match="no swearing"):
        await story.run(hooks=Hooks(on_prompt=lambda prompt: HookDecision("deny", "no swearing")))
    with pytest.raises(CallbackError, match="on_prompt returned a value of type int"):
        await story.run(hooks=Hooks(on_prompt=lambda prompt: 3))  # pyright: ignore


@pytest.mark.parametrize("returned", [HookDecision("deny", "no swearing"), 3, ValueError("no swearing")])
async def test_a_stream_whose_message_a_hook_refuses_ends_with_one_error(returned: object):
    def answer(prompt: HookedPrompt) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    hooks, model = Hooks(on_prompt=answer), [scripted(["never"])]
    stream = async_run_stream(agent(), "hi", providers=model, hooks=hooks)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["error"]
    assert events[-1].data["message"] == str(stream.result.error)
    assert (stream.result.reason, stream.result.output, stream.result.session.messages) == ("error", "", [])
    with run_stream(agent(), "hi", providers=model, hooks=hooks, output_type=int) as shown:
        assert [event.type for event in shown] == ["error"]
        with pytest.raises(OutputUnavailableError, match=r"on_prompt|refused"):
            _ = shown.result.output


@pytest.mark.parametrize("name", ["before_call", "after_call", "on_stop"])
async def test_what_a_hook_may_not_return_is_reported(name: str):
    story = Story([[call("echo", text="a")], "done"])
    result = await story.run(tools=[ECHO], hooks=Hooks(**{name: lambda _: 3}))
    assert result.output == "done"
    (error,) = [event for event in story.events if isinstance(event, ErrorEvent)]
    assert f"{name} returned 3" in error.message
