"""One agent: answers, calls, errors that come back, limits, circles, cancelling."""

import asyncio
import gc

import pytest

from outrider import (
    Attachment,
    ConfigurationError,
    InvalidRequestError,
    LimitReachedError,
    Limits,
    NetworkError,
    OutriderError,
    RetryPart,
    ServerError,
    Session,
    StepFinishPart,
    Tokens,
    Tool,
    ToolCompleted,
    ToolError,
    ToolPart,
    run,
    validate_part,
)
from outrider.events import (
    BudgetExceededEvent,
    ErrorEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    PartDeltaEvent,
    RetryScheduledEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)
from outrider.types.parts import ReasoningPart
from outrider.types.request import Finish, Retry
from tests.scenario.scripted_runs import Story, agent, call


@Tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def calls_of(session: Session) -> list[ToolPart]:
    return [part for message in session.messages for part in message.get_parts_by_type(ToolPart)]


async def test_a_plain_answer_ends_the_turn():
    story = Story(["Hello there."])
    result = await story.run("hi")
    assert (result.output, result.termination_reason) == ("Hello there.", "completed")
    assert [message.role for message in result.session.messages] == ["user", "assistant"]


async def test_a_call_is_run_and_its_result_goes_back():
    story = Story([["Let me see.", call("add", a=1, b=2)], "It is 3."])
    result = await story.run(tools=[add])
    assert result.output == "It is 3."
    (part,) = calls_of(result.session)
    assert isinstance(part.state, ToolCompleted)
    assert part.state.output == "3"


async def test_everything_that_is_preserved_is_valid_and_an_answer_carries_what_it_used():
    story = Story([["Let me see.", call("add", a=1, b=2), Tokens(input=10, output=5)], ["It is 3.", Tokens(20, 3)]])
    result = await story.run(tools=[add])
    for message in result.session.messages:
        message.validate()
        for part in message.parts:
            validate_part(part)
    answers = [message for message in result.session.messages if message.role == "assistant"]
    assert [answer.tokens for answer in answers] == [Tokens(10, 5), Tokens(20, 3)]
    assert [answer.finish for answer in answers] == ["tool_use", "stop"]
    assert all(answer.get_parts_by_type(StepFinishPart) for answer in answers)
    assert result.usage.tokens == Tokens(30, 8)


async def test_events_come_in_the_right_order_with_the_right_names():
    story = Story([[call("add", a=1, b=2)], "3"])
    result = await story.run(tools=[add])
    texts = [
        event.event_type
        for event in story.events
        if isinstance(
            event,
            LoopStartedEvent
            | TurnStartedEvent
            | LLMRequestEvent
            | LLMResponseEvent
            | ToolExecutionStartedEvent
            | ToolExecutionCompletedEvent
            | TurnCompletedEvent
            | LoopCompletedEvent,
        )
    ]
    assert texts == [
        "LoopStartedEvent",
        "TurnStartedEvent",
        "LLMRequestEvent",
        "LLMResponseEvent",
        "ToolExecutionStartedEvent",
        "ToolExecutionCompletedEvent",
        "TurnCompletedEvent",
        "TurnStartedEvent",
        "LLMRequestEvent",
        "LLMResponseEvent",
        "TurnCompletedEvent",
        "LoopCompletedEvent",
    ]
    states = [event.new_state for event in story.events_of(StateChangedEvent)]
    assert states == ["calling_model", "running_tools", "calling_model", "done"]
    assert {event.agent_name for event in story.events_of(LLMRequestEvent)} == {"writer"}
    assert {event.session_id for event in story.events} == {result.session.id}
    (completed,) = story.events_of(LoopCompletedEvent)
    assert (completed.total_turns, completed.output) == (2, "3")


async def test_text_is_shown_as_it_arrives():
    story = Story(["a long answer that comes in pieces"])
    result = await story.run()
    deltas = [event.delta for event in story.events_of(PartDeltaEvent)]
    assert len(deltas) > 1
    assert "".join(deltas) == result.output


async def test_calls_of_one_answer_run_side_by_side():
    together = asyncio.Barrier(3)

    @Tool
    async def meet() -> str:
        async with asyncio.timeout(30):
            await together.wait()
        return "met"

    story = Story([[call("meet"), call("meet"), call("meet")], "done"])
    result = await story.run(tools=[meet])
    assert result.output == "done"


async def test_a_tool_that_wants_to_be_alone_is():
    running: list[str] = []

    @Tool(parallel=False)
    async def alone(name: str) -> str:
        running.append(name)
        await asyncio.sleep(0.01)
        assert running == [name]
        running.clear()
        return name

    story = Story([[call("alone", name="a"), call("alone", name="b"), call("alone", name="c")], "done"])
    result = await story.run(tools=[alone])
    assert all(isinstance(part.state, ToolCompleted) for part in calls_of(result.session))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (call("add", a=1), "`b` is missing"),
        (call("add", a="one", b=2), "`a`: expected `int`"),
        (call("sub", a=1, b=2), "There is no tool called 'sub'"),
        (call("writer", message="x"), "There is an agent called 'writer', not a tool"),
        (call("call_agent", agent_name="add", message="x"), "There is a tool called 'add', not an agent"),
        (call("call_agent", agent_name="nobody", message="x"), "There is no agent called 'nobody'"),
    ],
)
async def test_what_the_model_does_wrong_comes_back_as_a_result_and_the_turn_continues(wrong, message):
    story = Story([[wrong], "I see."])
    result = await story.run(tools=[add])
    assert result.output == "I see."
    (part,) = calls_of(result.session)
    assert isinstance(part.state, ToolError)
    assert message in part.state.error


async def test_a_tool_that_raises_is_an_error_that_the_model_reads():
    @Tool
    def broken() -> None:
        raise RuntimeError("the disk is on fire")

    story = Story([[call("broken")], "oh"])
    result = await story.run(tools=[broken])
    assert calls_of(result.session)[0].state.error == "RuntimeError: the disk is on fire"  # pyright: ignore


async def test_finish_ends_the_turn_with_its_message():
    story = Story([[call("finish", message="All done.")]])
    result = await story.run()
    assert (result.output, result.termination_reason) == ("All done.", "completed")


async def test_a_provider_that_refuses_ends_the_run_with_its_message_and_everything_stored():
    story = Story([[call("add", a=1, b=2)], InvalidRequestError("no such model", status=404)])
    with pytest.raises(OutriderError, match="no such model") as caught:
        await story.run(tools=[add])
    result = caught.value.details["result"]
    assert result.termination_reason == "error"
    assert isinstance(calls_of(result.session)[0].state, ToolCompleted)
    last = result.session.messages[-1]
    assert (last.error.type, last.error.message) == ("InvalidRequestError", "no such model")
    assert story.events_of(ErrorEvent)[0].message == "no such model"


async def test_an_answer_that_breaks_off_preserves_what_was_shown_and_runs_no_call():
    ran: list[int] = []
    story = Story([["so far ", call("touch"), "and", NetworkError("connection lost")]])
    with pytest.raises(NetworkError) as caught:
        await story.run(tools=[Tool(lambda: ran.append(1), name="touch")])
    last = caught.value.details["result"].session.messages[-1]
    assert last.get_text_content() == "so far \nand"
    assert ran == []
    (part,) = last.get_parts_by_type(ToolPart)
    assert part.state.reason == "canceled"
    assert last.finish is None


async def test_turns_are_limited_and_what_was_done_is_preserved():
    story = Story(lambda request: ["again", call("add", a=len(request.prompt), b=1)])
    result = await story.run(tools=[add], limits=Limits(turns=3))
    assert (result.termination_reason, result.output) == ("limit", "again")
    assert len(calls_of(result.session)) == 3
    assert story.events_of(BudgetExceededEvent)[0].limit == "turns"


async def test_time_is_limited_also_in_the_middle_of_a_call():
    @Tool
    async def slow() -> None:
        await asyncio.sleep(100)

    story = Story([[call("slow")]])
    result = await asyncio.wait_for(story.run(tools=[slow], limits=Limits(seconds=1)), 30)
    assert result.termination_reason == "limit"
    assert calls_of(result.session)[0].state.reason == "canceled"  # pyright: ignore


async def test_a_money_limit_is_not_overshot_by_a_model_without_a_price():
    story = Story(["never asked"])
    with pytest.raises(ConfigurationError, match="price is not known") as caught:
        await story.run(limits=Limits(cost=0.5))
    assert len(caught.value.details["result"].session.messages) == 1


async def test_the_same_call_again_and_again_is_stopped():
    story = Story(lambda _: [call("add", a=1, b=1)])
    result = await story.run(tools=[add], limits=Limits(repeats=7))
    assert result.termination_reason == "repetition"
    assert len(calls_of(result.session)) == 7
    warnings = [m.get_text_content() for m in result.session.messages if m.metadata.get("note")]
    assert ["3 times" in warnings[0], "6 times" in warnings[1], len(warnings)] == [True, True, 2]


async def test_polling_does_not_end_a_run():
    states = iter(["pending"] * 20 + ["done"])

    @Tool
    def job_state() -> str:
        """Return the state of the job."""
        return next(states)

    result = await Story([*[[call("job_state")] for _ in range(21)], "It is done."]).run(
        tools=[job_state], limits=Limits()
    )
    assert (result.termination_reason, result.output) == ("completed", "It is done.")
    numbers = iter(range(60))
    items = Tool(lambda: str(next(numbers)), name="next_item")
    result = await Story([*[[call("next_item")] for _ in range(60)], "All."]).run(tools=[items], limits=Limits())
    assert result.output == "All."
    polled = Tool(lambda: "pending", name="poll", repeats=None)
    result = await Story([*[[call("poll")] for _ in range(60)], "Enough."]).run(tools=[polled], limits=Limits())
    assert result.output == "Enough."
    assert not [m for m in result.session.messages if m.metadata.get("note")]


async def test_empty_answers_do_not_loop_for_ever():
    story = Story(lambda _: [Finish("stop", "stop")])
    result = await story.run()
    assert result.termination_reason == "empty_answers"


async def test_a_refusal_ends_the_turn_as_a_refusal():
    story = Story([["I cannot help with that.", Finish("refusal", "refusal")]])
    result = await story.run()
    assert (result.termination_reason, result.output) == ("refusal", "I cannot help with that.")


@pytest.mark.parametrize("finish", ["length", "other"])
async def test_calls_of_an_answer_that_was_cut_are_not_run_and_the_model_is_informed(finish):
    ran: list[int] = []
    story = Story([["so ", call("touch"), Finish(finish, finish)], "again then"])
    result = await story.run(tools=[Tool(lambda: ran.append(1), name="touch")])
    assert result.output == "again then"
    assert ran == []
    assert "may be incomplete" in calls_of(result.session)[0].state.error  # pyright: ignore


async def test_an_answer_that_was_cut_is_marked():
    result = await Story([["a long answ", Finish("length", "max_tokens")]]).run()
    assert (result.termination_reason, result.output) == ("length", "a long answ")


async def test_a_retry_is_reported_and_preserved():
    story = Story([[Retry(1, 5, "overloaded", 4), "at last"]])
    result = await story.run()
    assert result.output == "at last"
    (retry,) = story.events_of(RetryScheduledEvent)
    assert (retry.attempt, retry.delay_ms, retry.max_attempts) == (1, 5, 4)
    assert result.session.messages[-1].get_parts_by_type(RetryPart)[0].error == "overloaded"


async def test_cancelling_a_run_ends_its_calls_and_stores_them():
    started = asyncio.Event()

    @Tool
    async def slow() -> None:
        started.set()
        await asyncio.sleep(100)

    story = Story([["working", call("slow"), call("slow")]])
    session = Session()
    task = asyncio.ensure_future(story.run(tools=[slow], session=session))
    await started.wait()
    task.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [part.state.reason for part in calls_of(session)] == ["canceled", "canceled"]  # pyright: ignore
    assert story.events_of(LoopCompletedEvent)[0].termination_reason == "aborted"


async def test_cancelling_during_an_answer_preserves_what_arrived():
    never = asyncio.Event()
    story = Story([["half an ", "answer", never, "and more"]], chunk=4)
    session = Session()
    task = asyncio.ensure_future(story.run(session=session))
    while not story.events_of(PartDeltaEvent) or "answer" not in "".join(
        e.delta for e in story.events_of(PartDeltaEvent)
    ):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.messages[-1].get_text_content() == "half an answer"
    assert session.messages[-1].error.type == "aborted"  # pyright: ignore


async def test_a_session_can_be_continued():
    first = await Story(["I am Ada."]).run("who are you?")
    story = Story(lambda request: f"{len(request.prompt)} messages")
    second = await story.run("and now?", session=first.session)
    assert second.output == "3 messages"
    assert second.session.id == first.session.id
    assert len(second.session) == 4


async def test_attachments_reach_the_model():
    def look(request):
        return f"{[part.type for part in request.prompt[0].content]}"

    result = await Story(look).run("what is this?", attachments=[Attachment("image/png", "QUJD", name="a.png")])
    assert result.output == "['text', 'file']"


async def test_chat_mode_has_no_tools_and_plan_mode_only_those_that_read():
    @Tool(read_only=True)
    def look() -> str:
        return "seen"

    def tools(request):
        return ",".join(tool.name for tool in request.tools) or "none"

    assert (await Story(tools).run(tools=[add, look], mode="chat")).output == "none"
    assert (await Story(tools).run(tools=[add, look], mode="plan")).output == "look"
    assert (await Story(tools).run(tools=[add, look], mode="agent")).output == "add,look"


@pytest.mark.parametrize(
    ("approve", "reason", "message"),
    [
        (None, "denied", "no user is available"),
        (lambda request: False, "rejected", "The user denied this call."),
        (lambda request: "use another way", "rejected", "The user denied this call: use another way"),
        (lambda request: 1 / 0, "denied", "the function that approves calls gave no answer (ZeroDivisionError"),
        (lambda request: None, "denied", "the function that approves calls gave no answer (it returned None"),
    ],
)
async def test_a_declined_call_ends_in_error_and_the_turn_continues(approve, reason, message):
    ran: list[int] = []
    risky = Tool(lambda: ran.append(1), name="risky", policy="ask")
    story = Story([[call("risky")], "fine"])
    result = await story.run(tools=[risky], approve=approve)
    assert result.output == "fine"
    (part,) = calls_of(result.session)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == reason
    assert message in part.state.error
    assert ran == []


async def test_an_approved_call_runs_and_what_was_shown_is_what_ran():
    shown: list[dict] = []

    async def approve(request):
        shown.append(request.input)
        await asyncio.sleep(0)
        return True

    ran: list[str] = []
    risky = Tool(
        lambda path: str(ran.append(path)),
        name="risky",
        policy="ask",
        preprocess_args=lambda args: {"path": args["path"].strip()},
    )
    story = Story([[call("risky", path="  a.txt ")], "fine"])
    await story.run(tools=[risky], approve=approve)
    assert shown == [{"path": "a.txt"}]
    assert ran == ["a.txt"]
    assert story.events_of(ToolApprovalRequestedEvent)[0].tool_input == {"path": "a.txt"}


async def test_a_call_that_waits_for_approval_does_not_hold_the_others():
    answer = asyncio.Event()

    async def approve(request):
        await answer.wait()
        return True

    quick = Tool(lambda: answer.set() or "done", name="quick")
    risky = Tool(lambda: "ran", name="risky", policy="ask")

    async def release():
        answer.set()
        return "released"

    story = Story([[call("risky"), call("release")], "fine"])
    result = await story.run(tools=[risky, quick, Tool(release)], approve=approve)
    assert [part.state.output for part in calls_of(result.session)] == ["ran", "released"]  # pyright: ignore


async def test_a_limit_error_can_be_read_by_a_program():
    error = LimitReachedError("turns", 3, 3)
    assert (error.limit, error.details["maximum"]) == ("turns", 3)


def test_an_agent_with_a_provider_that_was_not_given_is_reported_at_once():
    with pytest.raises(ConfigurationError, match="needs the provider 'scripted'"):
        run(agent(), "hi", [agent()], [], [])


async def test_an_agent_alone_is_not_informed_of_tools_that_it_was_not_offered():
    story = Story([[call("sub", a=1, b=2)], "I see."])
    result = await story.run(tools=[add])
    assert calls_of(result.session)[0].state.error.endswith("The tools are: add.")  # pyright: ignore


async def test_an_agent_that_cannot_stream_asks_for_answers_in_one_piece():
    asked: list[bool] = []

    def answer(request):
        asked.append(request.stream)
        return "whole"

    await Story(answer).run(entry=agent(stream=False))
    await Story(answer).run(entry=agent())
    assert asked == [False, True]


async def test_a_strict_tool_is_offered_as_such():
    def answer(request):
        return str([tool.strict for tool in request.tools])

    strict = Tool(lambda: "", name="held", strict=True)
    assert (await Story(answer).run(tools=[strict, add])).output == "[True, False]"


async def test_a_turn_reports_that_it_waits_for_an_answer_and_then_that_tools_run():
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    story = Story([[call("risky"), call("risky")], "fine"])
    await story.run(tools=[risky], approve=lambda _: True)
    assert [event.new_state for event in story.events_of(StateChangedEvent)] == [
        "calling_model",
        "running_tools",
        "awaiting_approval",
        "running_tools",
        "awaiting_approval",
        "running_tools",
        "calling_model",
        "done",
    ]


async def test_a_user_who_cannot_answer_has_not_agreed():
    def fail(request):
        raise RuntimeError("the window is gone")

    story = Story([[call("risky")], "fine"])
    result = await story.run(tools=[Tool(lambda: "ran", name="risky", policy="ask")], approve=fail)
    assert result.output == "fine"
    assert "the window is gone" in calls_of(result.session)[0].state.error  # pyright: ignore


async def test_an_answer_that_the_provider_paused_continues_with_what_was_reported():
    def second(request):
        assert request.prompt[-1].role == "assistant"
        return f"and on after {request.prompt[-1].content[0].text!r}"

    searched = ReasoningPart("", provider_state={"block": {"type": "server_tool_use", "id": "s1"}})
    story = Story([["searching", searched, Finish("other", "pause_turn", paused=True)], second])
    result = await story.run()
    assert result.termination_reason == "completed"
    assert result.output == "and on after 'searching'"


async def test_no_more_calls_run_at_once_than_the_limit_allows():
    running, most, both = 0, 0, asyncio.Barrier(2)

    async def work() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.wait_for(both.wait(), 30)
        await asyncio.sleep(0.005)
        running -= 1
        return "done"

    story = Story([[call("work", f"c{number}") for number in range(6)], "fine"])
    await story.run(tools=[Tool(work)], limits=Limits(parallel_calls=2))
    assert most == 2


@pytest.mark.parametrize(("limits", "most"), [(Limits(), 256), (Limits(calls_per_answer=3), 3)])
async def test_calls_above_the_limit_of_one_answer_are_reported_as_not_run(limits: Limits, most: int):
    ran: list[int] = []

    def work(number: int) -> str:
        ran.append(number)
        return "done"

    prompts: list[str] = []

    def answer(request):
        prompts.append(str(request.prompt[-1]))
        return [call("work", number=number) for number in range(most + 5)] if len(prompts) == 1 else "fine"

    result = await Story(answer).run(tools=[Tool(work)], limits=limits)
    assert result.output == "fine"
    assert sorted(ran) == list(range(most))
    assert prompts[1].count(f"at most {most} calls") == 5


async def test_tokens_are_limited_and_an_answer_is_asked_for_no_longer_than_what_is_left():
    rooms: list[int | None] = []

    def answer(request):
        rooms.append(request.settings.max_output_tokens)
        return [call("add", a=len(rooms), b=1), Tokens(1_000, 1_000)]

    result = await Story(answer).run(tools=[add], limits=Limits(tokens=5_000))
    assert result.termination_reason == "limit"
    assert result.usage.tokens.total <= 5_000
    assert rooms == sorted(rooms, reverse=True)
    assert all(room is not None for room in rooms)


async def test_a_turn_that_fails_or_is_aborted_ends_in_a_state_that_names_it():
    story = Story([ServerError("no", status=500)])
    with pytest.raises(ServerError):
        await story.run()
    assert story.events_of(StateChangedEvent)[-1].new_state == "failed"
    never = asyncio.Event()
    story = Story([[never, "x"]])
    task = asyncio.ensure_future(story.run())
    while not story.events_of(LLMRequestEvent):
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    assert story.events_of(StateChangedEvent)[-1].new_state == "aborted"


async def test_invalid_arguments_are_reported_as_such_and_no_one_is_asked():
    asked: list[str] = []

    @Tool(policy="ask")
    def send(path: str, count: int) -> str:
        return "sent"

    def approve(request) -> bool:
        asked.append(request.tool)
        return True

    story = Story([[call("send", "c1", count="many")], "done"])
    result = await story.run(tools=[send], approve=approve)
    (part,) = [part for message in result.session.messages for part in message.get_parts_by_type(ToolPart)]
    assert (part.state.reason, asked) == ("invalid_input", [])
    assert part.state.error.startswith("Invalid arguments for send: ")
    assert "path" in part.state.error


@pytest.mark.slow
async def test_timers_of_steps_and_calls_are_freed_without_the_garbage_collector():
    """With a thousand concurrent runs, it took a third of the time to find them."""
    alive: list[int] = []

    @Tool
    async def count() -> str:
        """Count what is in memory."""
        alive.append(sum(type(found).__name__ in ("SilenceTimer", "_RunningCall") for found in gc.get_objects()))
        return "ok"

    gc.collect()
    gc.disable()
    try:
        await Story([call("count") for _ in range(4)] + ["done"]).run(tools=[count])
    finally:
        gc.enable()
    assert alive == [alive[0]] * 4
