"""Agents as equals: they call each other, also in parallel, within limits, and all of their messages are stored."""

import asyncio

import msgspec
import pytest

from outrider import (
    Agent,
    Attachment,
    ConfigurationError,
    Limits,
    NotFoundError,
    RunResult,
    Tool,
    ToolError,
    ToolPart,
    async_run,
)
from outrider.events import AgentCalledEvent, AgentReturnedEvent, LoopStartedEvent, MessageAddedEvent
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionFilter
from tests.scenario.scripted_runs import Story, agent, call, scripted

WRITER = agent("writer", "You write.")
REVIEWER = agent("reviewer", "You review.", role="finds mistakes")


def asked_of(request) -> str:
    """Which agent a request belongs to, by its instructions."""
    return (request.system or "").split("\n")[0]


def cast(**answers):
    """A script in which each agent has its own answers, by name."""
    queues = {name: list(given) for name, given in answers.items()}

    def answer(request):
        name = next(name for name in queues if asked_of(request) == f"You are the {name}.")
        return queues[name].pop(0)

    return answer


def player(name: str, **fields) -> Agent:
    return agent(name, f"You are the {name}.", **fields)


async def test_an_agent_calls_another_and_continues_with_its_answer():
    story = Story(
        cast(
            boss=[[call("call_agent", "c1", agent_name="clerk", message="Count to 2.")], "The clerk said: 1, 2."],
            clerk=["1, 2."],
        )
    )
    result = await story.run(entry=player("boss"), agents=[player("clerk")])
    assert result.output == "The clerk said: 1, 2."
    messages = [(message.type, message.sender, message.receiver, message.content) for message in result.messages]
    assert messages == [
        ("forward", "user", "boss", "go"),
        ("forward", "boss", "clerk", "Count to 2."),
        ("return", "clerk", "boss", "1, 2."),
        ("return", "boss", "user", "The clerk said: 1, 2."),
    ]
    assert {message.call_id for message in result.messages} == {"", "c1"}


async def test_each_agent_sees_the_others_and_what_they_do():
    seen = {}

    def look(request):
        seen[asked_of(request)] = request
        return "ok"

    await Story(look).run(entry=WRITER, agents=[REVIEWER, agent("editor", "You edit.\nMore.")])
    request = seen["You write."]
    assert "- reviewer: finds mistakes" in request.system
    assert "- editor: You edit." in request.system
    assert "- writer" not in request.system
    assert [tool.name for tool in request.tools] == ["call_agent", "finish"]


async def test_an_agent_alone_is_offered_no_way_to_others():
    def look(request):
        return f"{request.system}|{len(request.tools)}"

    assert (await Story(look).run(entry=WRITER)).output == "You write.|0"


async def test_several_agents_are_called_at_once():
    together = asyncio.Barrier(2)

    @Tool
    async def meet() -> str:
        async with asyncio.timeout(30):
            await together.wait()
        return "met"

    asks = [call("call_agent", agent_name=name, message="meet") for name in ("one", "two")]
    story = Story(cast(boss=[asks, "done"], one=[[call("meet")], "1"], two=[[call("meet")], "2"]))
    result = await story.run(entry=player("boss"), agents=[player("one"), player("two")], tools=[meet])
    assert result.output == "done"
    assert sorted(message.content for message in result.messages if message.type == "return") == ["1", "2", "done"]


async def test_agents_that_work_in_parallel_share_a_limit_of_tokens():
    asks = [call("call_agent", agent_name=name, message="work") for name in ("one", "two", "three")]
    story = Story(cast(boss=[asks, "done"], one=["1"], two=["2"], three=["3"]))
    players = [player("one"), player("two"), player("three")]
    result = await story.run(entry=player("boss"), agents=players, limits=Limits(tokens=5_000))
    assert (result.output, result.termination_reason) == ("done", "completed")
    assert sorted(message.content for message in result.messages if message.type == "return") == ["1", "2", "3", "done"]


async def test_calls_of_agents_hold_no_place_that_their_own_calls_need():
    story = Story(
        cast(
            boss=[[call("call_agent", agent_name="clerk", message="x")], "done"],
            clerk=[[call("look")], "looked"],
        )
    )
    tools = [Tool(lambda: "seen", name="look")]
    limits = Limits(parallel_calls=1)
    result = await asyncio.wait_for(
        story.run(entry=player("boss"), agents=[player("clerk")], tools=tools, limits=limits), 5
    )
    assert result.output == "done"


async def test_each_call_is_a_child_session_with_its_own_context():
    store = MemoryStore()
    prompts: list[int] = []

    def clerk(request):
        prompts.append(len(request.prompt))
        return "counted"

    story = Story(
        cast(
            boss=[
                ["one", call("call_agent", agent_name="clerk", message="a")],
                ["two", call("call_agent", agent_name="clerk", message="b")],
                "done",
            ],
            clerk=[clerk, clerk],
        )
    )
    result = await story.run(entry=player("boss"), agents=[player("clerk")], store=store)
    children = await store.list(SessionFilter(parent_id=result.session.id))
    assert [child.agent for child in children.sessions] == ["clerk", "clerk"]
    assert prompts == [1, 1]
    child = await store.load(children.sessions[0].id)
    assert [message.role for message in child.messages] == ["user", "assistant"]


async def test_a_sub_agents_finish_ends_only_that_sub_agent():
    story = Story(
        cast(
            boss=[[call("call_agent", agent_name="clerk", message="x")], "boss is done"],
            clerk=[[call("finish", message="clerk is done")]],
        )
    )
    result = await story.run(entry=player("boss"), agents=[player("clerk")])
    assert result.output == "boss is done"
    assert result.messages[2].content == "clerk is done"


async def test_agents_may_call_each_other_in_a_circle_until_the_depth_is_reached():
    def both(request):
        last = request.prompt[-1].content[-1]
        if last.type == "tool_result":
            return f"heard: {last.content}"
        other = "two" if asked_of(request) == "You are the one." else "one"
        return [call("call_agent", agent_name=other, message="your turn")]

    result = await Story(both).run(entry=player("one"), agents=[player("two")], limits=Limits(depth=3))
    assert result.termination_reason == "completed"
    assert "No agent can be called from here" in result.output
    assert sum(message.type == "forward" for message in result.messages) == 4


async def test_turns_are_limited_over_the_whole_tree():
    def endless(request):
        return [call("call_agent", agent_name="one", message=f"{len(request.prompt)}")]

    result = await Story(endless).run(entry=player("one"), agents=[player("two")], limits=Limits(turns=5, depth=99))
    assert result.termination_reason == "limit"


async def test_an_agent_that_fails_is_a_result_for_the_one_who_called_it():
    story = Story(
        cast(
            boss=[[call("call_agent", agent_name="clerk", message="x")], "then without it"],
            clerk=[NotFoundError("the model is gone")],
        )
    )
    result = await story.run(entry=player("boss"), agents=[player("clerk")])
    assert result.output == "then without it"
    (part,) = [part for message in result.session.messages for part in message.get_parts_by_type(ToolPart)]
    assert isinstance(part.state, ToolError)
    assert "clerk ended early (the model is gone)" in part.state.error


async def test_events_name_the_agent_and_the_call_that_brought_it():
    story = Story(
        cast(
            boss=[[call("call_agent", "c1", agent_name="clerk", message="x")], "done"],
            clerk=["ok"],
        )
    )
    result = await story.run(entry=player("boss"), agents=[player("clerk")])
    (called,) = story.events_of(AgentCalledEvent)
    (returned,) = story.events_of(AgentReturnedEvent)
    assert (called.agent_name, called.callee, called.call_id) == ("boss", "clerk", "c1")
    assert (returned.callee, returned.output, returned.success) == ("clerk", "ok", True)
    started = {event.agent_name: event for event in story.events_of(LoopStartedEvent)}
    assert started["boss"].parent_call_id == ""
    assert started["clerk"].parent_call_id == "c1"
    assert started["clerk"].session_id == called.child_session_id != result.session.id
    assert {event.session_id for event in story.events_of(MessageAddedEvent)} == {
        result.session.id,
        called.child_session_id,
    }


async def test_the_trace_shows_which_agent_called_which():
    story = Story(
        cast(
            boss=[["hm", call("call_agent", agent_name="clerk", message="x")], "done"],
            clerk=[[call("look")], "ok"],
        )
    )
    result: RunResult = await story.run(
        entry=player("boss"), agents=[player("clerk")], tools=[Tool(lambda: "seen", name="look")]
    )
    tree = result.format_trace()
    assert tree.index("agent boss") < tree.index("agent clerk") < tree.index("tool look")
    assert result.trace.root.name == "boss"


async def test_attachments_are_passed_on():
    def clerk(request):
        return str([part.type for part in request.prompt[0].content])

    story = Story(cast(boss=[[call("call_agent", agent_name="clerk", message="look")], "done"], clerk=[clerk]))
    attachment = Attachment("image/png", "QUJD", name="a.png")
    result = await story.run(entry=player("boss"), agents=[player("clerk")], attachments=[attachment])
    assert result.messages[2].content == "['text', 'file']"
    assert result.messages[1].attachments[0].mime_type == "image/png"


async def test_agents_may_use_different_providers():
    one = scripted([[call("call_agent", agent_name="clerk", message="x")], "done"])
    two = msgspec.structs.replace(scripted(["from the other"]), name="other")
    clerk = Agent("clerk", "You help.", "model-2", "other")
    result = await async_run(WRITER, "go", [WRITER, clerk], [], [one, two])
    assert result.messages[2].content == "from the other"


@pytest.mark.parametrize(
    ("agents", "tools", "message"),
    [
        ([player("a"), player("a")], [], "two agents are called 'a'"),
        ([player("a", tools=("gone",))], [], "needs the tool 'gone'"),
        ([player("look")], [Tool(lambda: "", name="look")], "the name 'look' is taken"),
        ([player("a")], [Tool(lambda: "", name="finish")], "the name 'finish' is taken"),
        ([player("a")], [Tool(lambda: "", name="x"), Tool(lambda: "", name="x")], "two tools are called 'x'"),
    ],
)
async def test_names_that_cannot_be_distinguished_are_refused_before_anything_runs(agents, tools, message):
    with pytest.raises(ConfigurationError, match=message):
        await async_run(agents[0], "go", agents, tools, [scripted(["never"])])


async def test_an_agent_has_only_the_tools_it_names():
    def look(request):
        return ",".join(tool.name for tool in request.tools)

    tools = [Tool(lambda: "", name="a"), Tool(lambda: "", name="b")]
    assert (await Story(look).run(entry=player("x", tools=("b",)), tools=tools)).output == "b"


async def test_an_agent_has_no_more_rights_than_the_one_who_called_it():
    look, touch = Tool(lambda: "seen", name="look", read_only=True), Tool(lambda: "done", name="touch")
    script = cast(
        boss=[[call("call_agent", agent_name="clerk", message="x")], "done"],
        clerk=[lambda request: ",".join(tool.name for tool in request.tools)],
    )
    result = await Story(script).run(
        entry=player("boss", mode="plan"), agents=[player("clerk", mode="agent")], tools=[look, touch]
    )
    assert result.messages[2].content == "look,call_agent,finish"


async def test_what_is_denied_to_the_caller_is_denied_to_the_called():
    script = cast(
        boss=[[call("call_agent", agent_name="clerk", message="x")], "done"],
        clerk=[[call("touch")], lambda request: request.prompt[-1].content[0].content],
    )
    result = await Story(script).run(
        entry=player("boss", permissions={"deny": ("touch",)}),
        agents=[player("clerk", permissions={"allow": ("touch",)})],
        tools=[Tool(lambda: "done", name="touch")],
    )
    assert "not allowed: a rule forbids it: touch." in result.messages[2].content
