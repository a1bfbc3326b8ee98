"""Sessions in an editor: prompts, approvals, denials, cancellation and resume."""

import asyncio
import json
import sys
from pathlib import Path

import acp
import pytest
from acp.schema import (
    AgentPlanUpdate,
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    McpServerStdio,
    SessionInfoUpdate,
    ToolCallProgress,
)

from tests.e2e.acp.editor import CANCELLED, Editor, EditorHome, call, say
from tests.fixtures.http_server import Reply, serving


async def test_an_answer_streams_in_with_its_thoughts_calls_and_plan(editor_home: EditorHome):
    todos = [{"content": "look", "status": "completed"}, {"content": "tell", "status": "in_progress"}]
    editor_home.write_script(
        [{"reasoning": "hm, the notes"}, "I look into the notes.", call("read", file_path="notes.txt", offset=1)],
        [call("todo", todos=todos)],
        "They say: remember the milk. \u00fc\u2028 \U0001f95b",
    )
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        assert await say(editor, session_id, "What do the notes say?") == "end_turn"
        assert editor.thought == "hm, the notes"
        assert editor.text_of() == "I look into the notes.They say: remember the milk. \u00fc\u2028 \U0001f95b"
        assert len(editor.of(acp.schema.AgentMessageChunk)) > 4, "the answer came in one piece"
        read = [update for update in editor.updates if getattr(update, "kind", None) == "read"][-1]
        assert (read.title, read.status) == ("read notes.txt", "completed")
        assert [(place.path, place.line) for place in read.locations] == [(str(editor_home.workspace / "notes.txt"), 1)]
        assert "remember the milk" in read.content[0].content.text
        (plan,) = editor.of(AgentPlanUpdate)
        assert [(entry.content, entry.status) for entry in plan.entries] == [
            ("look", "completed"),
            ("tell", "in_progress"),
        ]
        assert editor.of(SessionInfoUpdate)[0].title == "What do the notes say?"


async def test_an_approved_change_is_shown_as_a_diff_and_made(editor_home: EditorHome):
    editor_home.write_script(
        [call("read", file_path="notes.txt")],
        [call("edit", file_path="notes.txt", old_string="the milk", new_string="the tea")],
        "Changed.",
    )
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        editor.answers = ["once"]
        assert await say(editor, session_id, "tea instead") == "end_turn"
        ((asked, options),) = editor.asked
        path = str(editor_home.workspace / "notes.txt")
        wanted = next(content for content in asked.content if content.type == "diff")
        assert (wanted.path, wanted.old_text, wanted.new_text) == (path, "remember the milk", "remember the tea")
        assert [option.option_id for option in options] == [
            "once", "session", "session:workspace", "project", "project:workspace", "always", "no",
        ]  # fmt: skip
        done = [update for update in editor.updates if getattr(update, "kind", None) == "edit"][-1]
        assert (done.tool_call_id, done.status) == (asked.tool_call_id, "completed")
        (diff,) = done.content
        assert (diff.path, diff.old_text, diff.new_text) == (path, "remember the milk", "remember the tea")
        assert done.locations[0].line == 1
        assert (editor_home.workspace / "notes.txt").read_text() == "remember the tea\n"


async def test_a_refused_command_does_not_run_and_the_model_learns_of_it(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="touch made.txt", description="make a file")], "Then not.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        editor.answers = ["no"]
        assert await say(editor, session_id, "make it") == "end_turn"
        assert editor.text_of() == "Then not."
        shown = editor.call()
        assert (shown["title"], shown["kind"], shown["status"]) == ("touch made.txt", "execute", "failed")
        assert not (editor_home.workspace / "made.txt").exists()


async def test_an_answer_for_the_session_is_not_asked_for_again(editor_home: EditorHome):
    again = [call("write", file_path="made.txt", content="x")]
    editor_home.write_script(again, again, "Twice.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        editor.answers = ["session"]
        assert await say(editor, session_id, "go") == "end_turn"
        assert editor.text_of() == "Twice."
        assert len(editor.asked) == 1


async def test_an_answer_for_the_folder_holds_in_the_next_session_there(editor_home: EditorHome):
    editor_home.write_script(
        [call("write", file_path="made.txt", content="x")],
        "Made.",
        [call("write", file_path="made.txt", content="x")],
        "Again.",
    )
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        editor.answers = ["project"]
        assert await say(editor, session_id, "go") == "end_turn"
        ((_, options),) = editor.asked
        (folder,) = [option for option in options if option.option_id == "project"]
        assert (folder.kind, folder.name) == ("allow_always", "This folder: exactly these files (write(/made.txt))")
        assert await say(editor, await editor_home.new(editor), "go") == "end_turn"
        assert editor.text_of() == "Made.Again."
        assert len(editor.asked) == 1


def running(editor: Editor) -> list[ToolCallProgress]:
    return [update for update in editor.of(ToolCallProgress) if update.status == "in_progress"]


async def test_cancel_ends_a_command_whose_output_is_seen_live(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="echo tick; sleep 600")], "Never said.")
    async with editor_home.editor("--allow", "shell(*)") as editor:
        session_id = await editor_home.new(editor)
        turn = asyncio.create_task(say(editor, session_id, "wait"))
        await editor.until(lambda: any("tick" in str(one.content) for one in running(editor)))
        await editor.agent.cancel(session_id=session_id)
        assert await turn == "cancelled"
        assert editor.call()["status"] == "failed"


async def test_cancel_ends_a_turn_that_waits_for_an_answer(editor_home: EditorHome):
    editor_home.write_script(
        [call("shell", command="touch made.txt")], [call("shell", command="touch made.txt")], "Well."
    )
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        turn = asyncio.create_task(say(editor, session_id, "make it"))
        await editor.until(lambda: editor.asked)
        await editor.agent.cancel(session_id=session_id)
        assert await turn == "cancelled"
        editor.answers = [CANCELLED]
        assert await say(editor, session_id, "make it!") == "cancelled"
        assert await say(editor, session_id, "then not") == "end_turn"
        assert not (editor_home.workspace / "made.txt").exists()


async def test_a_session_is_listed_and_reported_again_after_a_restart(editor_home: EditorHome):
    todos = [{"content": "greet", "status": "completed"}]
    editor_home.write_script([{"reasoning": "kindly"}, "Hello!", call("todo", todos=todos)], "Done.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        assert await say(editor, session_id, "greet me") == "end_turn"
        updates = [update.model_dump(exclude={"content"}) for update in editor.of(AgentPlanUpdate)]
    editor_home.write_script("Welcome back.")
    async with editor_home.editor() as editor:
        listed = (await editor.agent.list_sessions(cwd=str(editor_home.workspace))).sessions
        assert [(found.session_id, found.cwd, found.title) for found in listed] == [
            (session_id, str(editor_home.workspace), "greet me")
        ]
        assert not (await editor.agent.list_sessions(cwd=str(editor_home.home))).sessions
        assert (await editor_home.load(editor, session_id)).modes.current_mode_id == "agent"
        assert (editor.user_text, editor.thought, editor.text_of()) == ("greet me", "kindly", "Hello!Done.")
        assert editor.call()["status"] == "completed"
        assert [update.model_dump(exclude={"content"}) for update in editor.of(AgentPlanUpdate)] == updates
        editor.forget()
        assert await say(editor, session_id, "again") == "end_turn"
        assert editor.text_of() == "Welcome back."


async def test_modes_and_models_are_switched_and_the_client_learns_of_it(editor_home: EditorHome):
    editor_home.write_script("One.", "Two.")
    async with editor_home.editor("--mode", "plan") as editor:
        opened = await editor.agent.new_session(cwd=str(editor_home.workspace), mcp_servers=[])
        assert opened.modes.current_mode_id == "plan"
        assert [mode.id for mode in opened.modes.available_modes] == ["chat", "plan", "agent", "background"]
        await editor.agent.set_session_mode(session_id=opened.session_id, mode_id="chat")
        await editor.until(lambda: editor.of(ConfigOptionUpdate))
        assert [update.current_mode_id for update in editor.of(CurrentModeUpdate)] == ["chat"]
        assert await say(editor, opened.session_id, "talk") == "end_turn"
        options = await editor.agent.set_config_option(
            config_id="model", session_id=opened.session_id, value="script/other"
        )
        chosen = {option.id: option.current_value for option in options.config_options}
        assert chosen == {
            "mode": "chat", "model": "script/other", "agent": "outrider", "approval": "ask", "effort": "medium",
        }  # fmt: skip
        options = await editor.agent.set_config_option(config_id="effort", session_id=opened.session_id, value="high")
        assert {option.id: option.current_value for option in options.config_options}["effort"] == "high"
        with pytest.raises(acp.RequestError, match="no reasoning effort is called 'huge'"):
            await editor.agent.set_config_option(config_id="effort", session_id=opened.session_id, value="huge")
        with pytest.raises(acp.RequestError, match="unknown mode 'fly'; there are chat, plan"):
            await editor.agent.set_session_mode(session_id=opened.session_id, mode_id="fly")


async def test_models_of_a_server_are_listed_as_soon_as_it_has_answered(editor_home: EditorHome):
    listed = {"data": [{"id": "gpt-5.4", "created": 2}, {"id": "own-model", "created": 1}, {"id": "text-embedding-3"}]}
    reply = Reply([json.dumps(listed).encode()], headers={"content-type": "application/json"})
    async with serving(reply, reply) as server:
        editor_home.write_script("One.")
        with (editor_home.home / "config.toml").open("a") as file:
            file.write(f'\n[providers.near]\nkind = "openai"\nbase_url = "{server.url}/v1"\n')
        async with editor_home.editor() as editor:
            opened = await editor.agent.new_session(cwd=str(editor_home.workspace), mcp_servers=[])
            models = {option.id: option for option in opened.config_options}["model"]
            assert "near/own-model" not in [option.value for option in models.options]
            await editor.until(lambda: editor.of(ConfigOptionUpdate))
            models = {option.id: option for option in editor.of(ConfigOptionUpdate)[-1].config_options}["model"]
            assert [option.value for option in models.options] == ["script/demo", "near/gpt-5.4", "near/own-model"]
            described = {option.value: option.description for option in models.options}
            assert described["near/own-model"] is None


async def test_an_accepted_plan_is_carried_out_in_the_same_turn(editor_home: EditorHome):
    editor_home.write_script("1. make a file\n2. rest\n", [call("shell", command="touch made.txt")], "Made.")
    async with editor_home.editor("--mode", "plan") as editor:
        session_id = await editor_home.new(editor)
        editor.answers = ["accept", "keep"]
        assert await say(editor, session_id, "plan it") == "end_turn"
        assert [entry.content for entry in editor.of(AgentPlanUpdate)[0].entries] == ["make a file", "rest"]
        assert editor.asked[0][0].kind == "switch_mode"
        assert editor.text_of().endswith("Made.")
        assert editor.of(CurrentModeUpdate)[-1].current_mode_id == "agent"
        assert (editor_home.workspace / "made.txt").exists()


async def test_what_goes_wrong_is_an_error_of_the_protocol_with_a_clear_message(editor_home: EditorHome):
    editor_home.write_script([{"error": "the model is on holiday"}], "Here again.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        with pytest.raises(acp.RequestError, match="the model is on holiday"):
            await say(editor, session_id, "hello?")
        assert await say(editor, session_id, "and now?") == "end_turn"
        with pytest.raises(acp.RequestError, match="is not open in this connection; load it first"):
            await say(editor, "nothing", "hello?")
        with pytest.raises(acp.RequestError, match="absolute path"):
            await editor.agent.new_session(cwd="here", mcp_servers=[])
        with pytest.raises(acp.RequestError, match="is not a folder"):
            await editor.agent.new_session(cwd=str(editor_home.home / "nowhere"), mcp_servers=[])
        with pytest.raises(acp.RequestError, match="no session"):
            await editor_home.load(editor, "0" * 32)
        with pytest.raises(acp.RequestError, match="the prompt is empty"):
            await say(editor, session_id, " ")


async def test_a_question_that_was_open_when_the_editor_went_is_asked_again(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="touch made.txt")])
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        turn = asyncio.create_task(say(editor, session_id, "make it"))
        await editor.until(lambda: editor.asked)
    with pytest.raises(ConnectionError):
        await turn
    editor_home.write_script("Made.")
    async with editor_home.editor() as editor:
        editor.answers = ["keep"]
        await editor_home.load(editor, session_id)
        await editor.until(lambda: "Made." in editor.text_of())
        assert editor.user_text == "make it"
        assert editor.call()["status"] == "completed"
        assert (editor_home.workspace / "made.txt").exists()


async def test_what_a_model_asked_when_the_editor_went_is_asked_again(editor_home: EditorHome):
    editor_home.write_script([call("question", question="Tea or milk?", options=["tea", "milk"])])
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        turn = asyncio.create_task(say(editor, session_id, "a drink"))
        await editor.until(lambda: editor.asked)
    with pytest.raises(ConnectionError):
        await turn
    editor_home.write_script("Milk it is.")
    async with editor_home.editor() as editor:
        editor.answers = ["1"]
        await editor_home.load(editor, session_id)
        await editor.until(lambda: "Milk it is." in editor.text_of())
        assert "The user answered: milk" in editor.call()["content"][0].content.text


async def test_a_model_asks_the_user_who_chooses_an_answer(editor_home: EditorHome):
    editor_home.write_script([call("question", question="Tea or milk?", options=["tea", "milk"])], "Milk it is.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        editor.answers = ["1"]
        assert await say(editor, session_id, "a drink") == "end_turn"
        ((asked, options),) = editor.asked
        assert (asked.title, [option.name for option in options]) == ("Tea or milk?", ["tea", "milk", "No answer"])
        assert "The user answered: milk" in editor.call()["content"][0].content.text
        await editor.agent.close_session(session_id=session_id)
        with pytest.raises(acp.RequestError, match="is not open in this connection"):
            await say(editor, session_id, "another")
        await editor.agent.resume_session(session_id=session_id, cwd=str(editor_home.workspace), mcp_servers=[])
        assert await editor.agent.cancel(session_id=session_id) is None


async def test_stdout_carries_the_protocol_and_nothing_else(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="echo loud; echo louder >&2")], "Said.")
    async with editor_home.raw() as (process, ask):
        assert (await ask("initialize", protocolVersion=1))["result"]["protocolVersion"] == 1
        opened = await ask("session/new", cwd=str(editor_home.workspace), mcpServers=[])
        blocks = [{"type": "text", "text": "go"}]
        done = await ask("session/prompt", sessionId=opened["result"]["sessionId"], prompt=blocks)
        assert done["result"]["stopReason"] == "end_turn"
        assert (await ask("session/nothing"))["error"]["code"] == -32601
        process.terminate()
        assert (await process.communicate())[0] == b""
    assert process.returncode == 0


async def test_a_server_that_the_editor_brings_along_has_its_tools_used(editor_home: EditorHome):
    script = Path(__file__).parents[1] / "mcp_servers" / "raw_server.py"
    own = McpServerStdio(name="own", command=sys.executable, args=["-S", str(script)], env=[])
    editor_home.write_script(*([call("mcp__own__echo", text="to and fro")], "Said.") * 100)
    async with editor_home.editor("--allow", "mcp__own__*") as editor:
        opened = await editor.agent.new_session(cwd=str(editor_home.workspace), mcp_servers=[own])
        async with asyncio.timeout(60):  # a loaded machine takes its time to start a server
            while not any(update.status == "completed" for update in editor.of(ToolCallProgress)):
                await say(editor, opened.session_id, "say it")
        assert "to and fro" in editor.of(ToolCallProgress)[-1].content[0].content.text
        assert not editor.asked


async def test_cancel_comes_never_too_early_and_reaches_all_that_was_reported(editor_home: EditorHome):
    editor_home.write_script("Slowly, " * 200, "And again.", delay=0.05)
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        turns = [asyncio.create_task(say(editor, session_id, text)) for text in ("one", "two")]
        await asyncio.sleep(0)  # both requests are sent, and no response has arrived
        await editor.agent.cancel(session_id=session_id)
        assert await asyncio.gather(*turns) == ["cancelled", "cancelled"]
        assert len(editor.text_of()) < 400, "the answer went on after the end of its turn"
        async with editor_home.editor() as other:
            with pytest.raises(acp.RequestError, match="is in use by process"):
                await editor_home.load(other, session_id)


async def test_the_editor_receives_what_a_turn_used(editor_home: EditorHome):
    editor_home.write_script("One.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        answer = await editor.agent.prompt(session_id=session_id, prompt=[acp.text_block("count")])
        assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0


async def test_commands_are_offered_and_carried_out(editor_home: EditorHome):
    note = editor_home.workspace / "note.txt"
    written = [call("write", file_path="note.txt", content="after\n")]
    editor_home.write_script(written, f"Written.{' It is there.' * 200}", "A note was written.")
    async with editor_home.editor("--allow", "write(*)") as editor:
        session_id = await editor_home.new(editor)
        await editor.until(lambda: editor.of(AvailableCommandsUpdate))
        (offered,) = editor.of(AvailableCommandsUpdate)
        assert [command.name for command in offered.available_commands] == ["compact", "undo", "redo"]
        assert await say(editor, session_id, "write it") == "end_turn"
        assert note.read_text() == "after\n"
        assert await say(editor, session_id, "/undo") == "end_turn"
        assert not note.exists()
        assert "note.txt" in editor.text_of()
        assert await say(editor, session_id, "/redo") == "end_turn"
        assert note.read_text() == "after\n"
        editor.forget()
        assert await say(editor, session_id, "/compact focus on the API") == "end_turn"
        assert editor.text_of().startswith("Earlier messages were summarised (")
        editor.forget()
        assert await say(editor, session_id, "/compact undo") == "end_turn"
        assert editor.text_of() == "The summarised messages are used again."
