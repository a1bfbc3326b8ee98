"""The public modules as a program uses them: fallback models, workspaces, MCP servers, providers of its own."""

import socket
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from outrider import Agent, ConfigurationError, Provider, RetryPart, RetryPolicy, async_run
from outrider.testing import SimulatedError, Simulator, call
from outrider.workspace import ApprovalRequest, Workspace

QUICK = RetryPolicy(first_window=0.0)
MODELS = {"anthropic": "claude-opus-4-6", "openai": "gpt-5", "openai-responses": "gpt-5", "google": "gemini-3-pro"}
OUTAGES = {
    "overload": {
        "anthropic": SimulatedError(529, "Overloaded", "overloaded_error"),
        "openai": SimulatedError(503, "The server is overloaded.", "server_error"),
        "openai-responses": SimulatedError(503, "The server is overloaded.", "server_error"),
        "google": SimulatedError(503, "The model is overloaded.", "UNAVAILABLE"),
    },
    "quota": {
        "anthropic": SimulatedError(400, "Your credit balance is too low to access the API.", "invalid_request_error"),
        "openai": SimulatedError(429, "You exceeded your current quota.", "insufficient_quota"),
        "openai-responses": SimulatedError(429, "You exceeded your current quota.", "insufficient_quota"),
        "google": SimulatedError(429, "You exceeded your current quota, check your plan.", "RESOURCE_EXHAUSTED"),
    },
}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("outage", ["overload", "quota", "unreachable"])
@pytest.mark.parametrize("kind", list(MODELS))
async def test_the_next_model_of_a_list_answers_once_and_the_change_is_recorded(kind: Any, outage: str):
    def answer(request: Any) -> Any:
        return OUTAGES[outage][kind] if outage in OUTAGES and request.kind == kind else "from the next model"

    other: Any = "openai" if kind == "anthropic" else "anthropic"
    async with Simulator(answer) as simulator:
        first = simulator.provider(kind)
        if outage == "unreachable":
            first = Provider("x", kind, "key", f"http://127.0.0.1:{closed_port()}")
        providers = [
            Provider("first", kind, first.api_key, first.base_url),
            Provider("second", other, "key", simulator.provider(other).base_url),
        ]
        names = [f"first/{MODELS[kind]}", f"second/{MODELS[other]}", f"second/{MODELS[other]}-never"]
        agent = Agent("helper", "You help.", model=names, provider="first", retry=QUICK)
        result = await async_run(agent, "Hello", providers=providers)
        requested = [request.kind for request in simulator.requests]
        assert {request.model for request in simulator.requests} <= set(MODELS.values())
    assert result.output == "from the next model"
    assert requested.count(other) == 1
    answers = [message for message in result.session.messages if message.role == "assistant"]
    assert [str(message.model) for message in answers] == [f"second/{MODELS[other]}"]
    assert [str(part.model) for part in answers[0].get_parts_by_type(RetryPart) if part.model] == [
        f"second/{MODELS[other]}"
    ]
    assert [message.role for message in result.session.messages] == ["user", "assistant"]


def test_a_list_of_models_has_at_least_one_name():
    for models in ([], [""], [3]):
        with pytest.raises(ConfigurationError, match="agent 'helper': the model is"):
            Agent("helper", "", model=models, provider="p")  # type: ignore[arg-type]


def scripted(*answers: Any) -> list[Provider]:
    return [Provider("demo", kind="scripted", options={"script": list(answers)})]


def helper(**fields: Any) -> Agent:
    return Agent("helper", "You help.", model="demo", provider="demo", **fields)


async def test_a_workspace_has_tools_a_sandbox_undo_processes_and_plan_mode(tmp_path: Path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.txt").write_text("one\n")
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    answers = [
        [call("read", path="a.txt")],
        "1. Edit a.txt.\n2. Run a command.",
        [call("edit", path="a.txt", old_string="one", new_string="two")],
        [call("shell", command="echo three > b.txt")],
        "Done.",
    ]
    async with Workspace(
        tmp_path / "w", helper(), scripted(*answers), approve=approve, data=tmp_path / "data"
    ) as workspace:
        assert "Edit a.txt" in (await workspace.prompt("Change it.", mode="plan")).output
        assert (await workspace.plan()) is not None
        assert (await workspace.accept_plan()).output == "Done."
        assert (tmp_path / "w" / "a.txt").read_text() == "two\n"
        assert (tmp_path / "w" / "b.txt").read_text() == "three\n"
        assert [request.tool for request in asked] == ["edit", "shell"]
        assert asked[1].outcome is not None
        assert workspace.processes.get_running_ids() == []
        assert set((await workspace.undo()).changed) == {"a.txt", "b.txt"}
        assert (tmp_path / "w" / "a.txt").read_text() == "one\n"
        assert not (tmp_path / "w" / "b.txt").exists()
        assert set((await workspace.redo()).changed) == {"a.txt", "b.txt"}
        session_id = workspace.session_id
    async with Workspace(
        tmp_path / "w", helper(), scripted("Again."), data=tmp_path / "data", session=session_id
    ) as workspace:
        assert (await workspace.prompt("More?")).output == "Again."
        assert len(workspace.engine.live[session_id].session.messages) > 4


async def test_a_workspace_without_approve_denies_and_leaves_nothing_behind(tmp_path: Path):
    before = set(Path(gettempdir()).glob("outrider-*"))
    script = [[call("write", path="a.txt", content="x")], "I could not."]
    async with Workspace(tmp_path, helper(), scripted(*script)) as workspace:
        assert (await workspace.prompt("Write.")).output == "I could not."
    assert list(tmp_path.iterdir()) == []
    assert set(Path(gettempdir()).glob("outrider-*")) <= before
    for wrong in ({"folder": tmp_path / "no"}, {"data": tmp_path / "d"}, {"sandbox": "x"}, {"session": "x"}):
        arguments: Any = {"folder": tmp_path, "agents": helper(), "providers": scripted(), **wrong}
        with pytest.raises(ConfigurationError, match="Workspace"):
            Workspace(**arguments)
