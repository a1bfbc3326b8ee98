"""Optional features of editors: forms, forks of sessions, additional folders and login."""

import asyncio

import acp
import pytest
from acp.schema import AvailableCommandsUpdate, ToolCallProgress

from tests.e2e.acp.editor import CANCELLED, Editor, EditorHome, call, say

FORMS = {"elicitation": {"form": {}}}


async def test_questions_with_free_text_and_several_choices_are_forms(editor_home: EditorHome):
    editor_home.write_script(
        [call("question", question="What is it called?")],
        [call("question", question="Which ones?", options=["tea", "milk", "water"], multiple=True)],
        [call("question", question="And then?", options=["go", "stay"])],
        "Noted.",
    )
    async with editor_home.editor(able=FORMS) as editor:
        session_id = await editor_home.new(editor)
        editor.filled = [{"text": "Outrider"}, {"choice": ["0", "2"], "text": "and juice"}, None]
        assert await say(editor, session_id, "ask me") == "end_turn"
        assert [message for message, _ in editor.forms] == ["What is it called?", "Which ones?", "And then?"]
        text, several, single = (mode.requested_schema for _, mode in editor.forms)
        assert (text.required, set(text.properties)) == (["text"], {"text"})
        assert [one.title for one in several.properties["choice"].items.any_of] == ["tea", "milk", "water"]
        assert [one.title for one in single.properties["choice"].one_of] == ["go", "stay"]
        assert all(mode.session_id == session_id and mode.tool_call_id for _, mode in editor.forms)
        outputs = texts_of(editor, "completed")
        assert "The user answered: Outrider" in outputs[0]
        assert "The user answered: tea; water; and juice" in outputs[1]
        assert "The user gave no answer" in outputs[2]


def texts_of(editor: Editor, status: str) -> list[str]:
    """The texts, not the diffs, of the calls that have ended this way."""
    ended = [update for update in editor.of(ToolCallProgress) if update.status == status]
    return [block.content.text for update in ended for block in update.content or () if block.type == "content"]


async def test_a_fork_has_the_messages_and_the_original_stays(editor_home: EditorHome):
    editor_home.write_script("One.", "Two.")
    async with editor_home.editor() as editor:
        assert editor.offered.agent_capabilities.session_capabilities.fork is not None
        session_id = await editor_home.new(editor)
        await say(editor, session_id, "count")
        fork = await editor.agent.fork_session(session_id=session_id, cwd=str(editor_home.workspace), mcp_servers=[])
        assert fork.session_id != session_id
        assert fork.modes.current_mode_id == "agent"
        editor.forget()
        await say(editor, fork.session_id, "go on")
        await editor_home.load(editor, session_id)
        assert editor.user_text == "count"
        editor.forget()
        await editor_home.load(editor, fork.session_id)
        assert editor.user_text == "countgo on"
        listed = (await editor.agent.list_sessions(cwd=str(editor_home.workspace))).sessions
        assert {one.session_id for one in listed} == {session_id, fork.session_id}
        with pytest.raises(acp.RequestError, match="works in"):
            await editor.agent.fork_session(session_id=session_id, cwd=str(editor_home.home), mcp_servers=[])


async def test_a_deleted_session_is_gone_and_deleting_it_again_succeeds(editor_home: EditorHome):
    editor_home.write_script("One.")
    async with editor_home.raw() as (process, ask):
        offered = await ask("initialize", protocolVersion=1)
        assert offered["result"]["agentCapabilities"]["sessionCapabilities"]["delete"] == {}
        opened = await ask("session/new", cwd=str(editor_home.workspace), mcpServers=[])
        session_id = opened["result"]["sessionId"]
        await ask("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "count"}])
        assert len((await ask("session/list", cwd=str(editor_home.workspace)))["result"]["sessions"]) == 1
        assert (await ask("session/delete", sessionId=session_id))["result"] == {}
        assert (await ask("session/list", cwd=str(editor_home.workspace)))["result"]["sessions"] == []
        assert (await ask("session/delete", sessionId=session_id))["result"] == {}
        assert (await ask("session/delete"))["error"]["code"] == -32602
        assert (await ask("_unknown"))["error"]["code"] == -32601
        process.terminate()


async def test_additional_folders_are_read_without_a_question_and_secrets_and_changes_are_not(editor_home: EditorHome):
    more = editor_home.home.parent / "more (1)"
    more.mkdir()
    (more / "list.txt").write_text("butter\n")
    (more / ".env").write_text("TOKEN=1\n")
    editor_home.write_script(
        [call("read", file_path=str(more / "list.txt"))],
        [call("grep", pattern="butter", path=str(more))],
        "Butter.",
        [call("read", file_path=str(more / ".env"))],
        "No.",
        [call("edit", file_path=str(more / "list.txt"), old_string="butter", new_string="jam")],
        "No.",
        [call("read", file_path=str(editor_home.home / "config.toml"))],
        "No.",
    )
    async with editor_home.editor() as editor:
        opened = await editor.agent.new_session(
            cwd=str(editor_home.workspace), additional_directories=[str(more)], mcp_servers=[]
        )
        await say(editor, opened.session_id, "what is on the list?")
        assert not editor.asked
        outputs = texts_of(editor, "completed")
        assert all("butter" in output for output in outputs)
        for number, title in enumerate(("read", "edit", "read"), 1):
            editor.answers = ["deny"]
            await say(editor, opened.session_id, "more")
            assert len(editor.asked) == number
            assert editor.asked[-1][0].title.startswith(title)
        assert (more / "list.txt").read_text() == "butter\n"
        with pytest.raises(acp.RequestError, match="absolute"):
            await editor.agent.new_session(
                cwd=str(editor_home.workspace), additional_directories=["more"], mcp_servers=[]
            )


async def test_without_a_key_a_session_asks_for_a_login_and_opens_after_it(editor_home: EditorHome):
    (editor_home.home / "config.toml").write_text('model = "anthropic/claude-sonnet-4-5"\n')
    async with editor_home.editor(able={"auth": {"terminal": True}}) as editor:
        login, key = editor.offered.auth_methods
        assert (login.type, login.args, key.id) == ("terminal", ["--login"], "key")
        with pytest.raises(acp.RequestError) as refused:
            await editor_home.new(editor)
        assert refused.value.code == -32000
        assert "outrider login" in str(refused.value)
        with pytest.raises(acp.RequestError) as again:
            await editor.agent.authenticate(method_id="key")
        assert again.value.code == -32000
        editor_home.write_script("Hello.")
        await editor.agent.authenticate(method_id="key")
        assert await say(editor, await editor_home.new(editor), "hello") == "end_turn"
    async with editor_home.editor() as editor:
        assert [method.id for method in editor.offered.auth_methods] == ["key"]


async def test_commands_from_files_are_offered_and_expanded(editor_home: EditorHome):
    commands = editor_home.home / ".claude" / "commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("---\ndescription: say hello\nargument-hint: NAME\n---\nGreet $1 warmly.\n")
    editor_home.write_script("Hello.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        await editor.until(lambda: editor.of(AvailableCommandsUpdate))
        offered = editor.of(AvailableCommandsUpdate)[0].available_commands
        greet = next(command for command in offered if command.name == "greet")
        assert (greet.description, greet.input.root.hint) == ("say hello", "NAME")
        await say(editor, session_id, "/greet Ann")
        await editor_home.load(editor, session_id)
        assert "Greet Ann warmly." in editor.user_text


async def test_commands_in_a_command_file_run_with_the_questions_of_the_agent(editor_home: EditorHome):
    commands = editor_home.home / ".claude" / "commands"
    commands.mkdir(parents=True)
    (commands / "state.md").write_text("Notes: !`cat notes.txt` for $1.")
    (commands / "change.md").write_text("Changed: !`sh -c 'echo new > made.txt; echo done'`")
    (commands / "limited.md").write_text("---\nallowed-tools: Bash(git status:*)\n---\n!`cat notes.txt`")
    made = editor_home.workspace / "made.txt"
    editor_home.write_script("Hello.", "Again.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        assert await say(editor, session_id, "/state Ann") == "end_turn"
        with pytest.raises(acp.RequestError, match="allowed-tools of the file does not include it"):
            await say(editor, session_id, "/limited")
        editor.answers = ["keep"]
        assert await say(editor, session_id, "/change") == "end_turn"
        assert made.read_text() == "new\n"
        made.unlink()
        editor.answers = [CANCELLED]
        with pytest.raises(acp.RequestError, match="was not sent"):
            await say(editor, session_id, "/change")
        assert not made.exists()
        await editor_home.load(editor, session_id)
        assert "Notes: remember the milk for Ann." in editor.user_text
        assert editor.user_text.count("Changed: done") == 1


async def test_a_command_of_a_command_file_ends_with_the_cancellation(editor_home: EditorHome):
    commands = editor_home.home / ".claude" / "commands"
    commands.mkdir(parents=True)
    (commands / "wait.md").write_text("!`sleep 600`")
    editor_home.write_script("Hello.")
    async with editor_home.editor() as editor:
        session_id = await editor_home.new(editor)
        asked = asyncio.create_task(say(editor, session_id, "/wait"))
        await asyncio.sleep(2)
        await editor.agent.cancel(session_id=session_id)
        assert await asyncio.wait_for(asked, 30) == "cancelled"
        assert await say(editor, session_id, "hello") == "end_turn"


BUFFERS = {"fs": {"readTextFile": True, "writeTextFile": True}}


async def test_unsaved_text_is_read_and_changed_in_the_editor_and_undone_there(editor_home: EditorHome):
    notes = editor_home.workspace / "notes.txt"
    editor_home.write_script(
        [call("read", file_path="notes.txt")],
        [call("shell", command="cat notes.txt")],
        [call("edit", file_path="notes.txt", old_string="the bread", new_string="the jam")],
        [call("write", file_path="new/list.txt", content="eggs\n")],
        "Done.",
    )
    async with editor_home.editor("--approval", "edits", able=BUFFERS) as editor:
        session_id = await editor_home.new(editor)
        editor.buffers[str(notes)] = "remember the bread\n"
        assert await say(editor, session_id, "jam, please") == "end_turn"
        read, shell, *_ = texts_of(editor, "completed")
        assert "remember the bread" in read
        assert "unsaved text" in read
        assert "remember the milk" in shell
        assert "not saved in the user's editor, so commands see the saved text: notes.txt" in shell
        # The user's own text is saved before the change, so that undo restores it.
        assert editor.written == [str(notes), str(notes), str(editor_home.workspace / "new" / "list.txt")]
        assert notes.read_text() == "remember the jam\n"
        assert (editor_home.workspace / "new" / "list.txt").read_text() == "eggs\n"
        await say(editor, session_id, "/undo")
        assert notes.read_text() == "remember the bread\n"
        assert not (editor_home.workspace / "new" / "list.txt").exists()
        editor.buffers[str(notes)] = "something else\n"
        await say(editor, session_id, "/redo")
        assert "unsaved" in editor.text_of()
        assert notes.read_text() == "remember the bread\n"


async def test_nothing_is_written_to_disk_if_the_editor_refuses_the_write(editor_home: EditorHome):
    notes = editor_home.workspace / "notes.txt"
    editor_home.write_script(
        [call("read", file_path="notes.txt")],
        [call("edit", file_path="notes.txt", old_string="milk", new_string="jam")],
        [call("apply_patch", patch="*** Begin Patch\n*** Delete File: notes.txt\n*** End Patch")],
        "Not done.",
    )
    async with editor_home.editor("--approval", "edits", able=BUFFERS) as editor:
        session_id = await editor_home.new(editor)
        editor.refuses_writes = True
        editor.buffers[str(notes)] = "remember the milk and bread\n"
        assert await say(editor, session_id, "jam, please") == "end_turn"
        errors = texts_of(editor, "failed")
        assert "refuses to write it: the file is locked" in errors[0]
        assert "unsaved changes in the user's editor" in errors[1]
        assert notes.read_text() == "remember the milk\n"


async def test_an_editor_that_only_reads_has_its_unsaved_files_left_alone(editor_home: EditorHome):
    notes, other = editor_home.workspace / "notes.txt", editor_home.workspace / "other.txt"
    other.write_bytes(b"a\r\nb\r\n")
    editor_home.write_script(
        [call("read", file_path="notes.txt"), call("read", file_path="other.txt"), call("read", file_path="new.txt")],
        [call("edit", file_path="notes.txt", old_string="milk", new_string="jam")],
        [call("edit", file_path="other.txt", old_string="a", new_string="c")],
        "Half done.",
    )
    async with editor_home.editor("--approval", "edits", able={"fs": {"readTextFile": True}}) as editor:
        session_id = await editor_home.new(editor)
        editor.buffers[str(notes)] = "remember the milk and bread\n"
        editor.buffers[str(other)] = "a\nb\n"  # an editor that normalizes line endings
        editor.buffers[str(editor_home.workspace / "new.txt")] = "never saved\n"
        assert await say(editor, session_id, "jam, please") == "end_turn"
        outputs = texts_of(editor, "completed")
        assert any("never saved" in output for output in outputs)
        (error,) = texts_of(editor, "failed")
        assert "ask the user to save" in error
        assert notes.read_text() == "remember the milk\n"
        assert other.read_bytes() == b"c\r\nb\r\n"
        assert not editor.written


async def test_a_command_or_an_agent_leaves_unsaved_text_alone(editor_home: EditorHome):
    notes, old = editor_home.workspace / "notes.txt", editor_home.workspace / "old" / "list.txt"
    old.parent.mkdir()
    old.write_text("eggs\n")
    editor_home.write_script(
        [call("shell", command="sed -i s/milk/jam/ notes.txt; rm -r old; echo tea > other.txt")],
        "Done.",
        [call("shell", command="sed -i s/milk/jam/ notes.txt")],
        [call("task", description="do it", prompt="do it")],
        [call("read", file_path="notes.txt")],
        [call("edit", file_path="notes.txt", old_string="bread", new_string="jam")],
        "Jam.",
        "Done.",
    )
    async with editor_home.editor(able=BUFFERS) as editor:
        session_id = await editor_home.new(editor)
        editor.buffers |= {str(notes): "remember the bread\n", str(old): "eggs and bacon\n"}
        editor.answers = ["keep"]
        await say(editor, session_id, "jam, please")
        question = editor.asked[0][0].content[0].content.text
        assert "modified: notes.txt (unsaved in the editor: this change is not applied)" in question
        assert "deleted: old/list.txt (unsaved in the editor" in question
        (output,) = texts_of(editor, "completed")
        assert "unsaved text in the user's editor and are left as they are: notes.txt, old/list.txt" in output
        assert (notes.read_text(), old.read_text()) == ("remember the milk\n", "eggs\n")
        assert (editor_home.workspace / "other.txt").read_text() == "tea\n"
        assert not editor.written
        editor.forget()
        await editor.agent.set_config_option(config_id="approval", session_id=session_id, value="edits")
        await say(editor, session_id, "jam, please")
        assert len(editor.asked) == 1  # at this level neither commands nor called agents need an approval
        assert "are left as they are: notes.txt" in texts_of(editor, "completed")[0]
        assert notes.read_text() == "remember the jam\n"
        assert editor.written == [str(notes), str(notes)]


async def test_a_write_that_the_editor_does_not_answer_ends_with_the_turn(editor_home: EditorHome):
    editor_home.write_script([call("write", file_path="new.txt", content="tea\n")], "Done.")
    async with editor_home.editor("--approval", "edits", able=BUFFERS) as editor:
        session_id = await editor_home.new(editor)
        editor.hangs_on_writes = True
        turn = asyncio.create_task(say(editor, session_id, "tea, please"))
        await editor.until(lambda: editor.written)
        await editor.agent.cancel(session_id=session_id)
        assert await turn == "cancelled"


async def test_output_of_a_sandboxed_command_is_printed_in_a_terminal_of_the_editor(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="echo one; sleep 1; echo two; exit 3")], "Done.")
    async with editor_home.editor(able={"terminal": True}) as editor:
        session_id = await editor_home.new(editor)
        turn = asyncio.create_task(say(editor, session_id, "run it"))
        await editor.until(lambda: "one" in "".join(editor.printed.values()))
        assert not turn.done()
        assert await turn == "end_turn"
        await editor.until(lambda: editor.released)
        assert editor.printed == {"terminal-0": "one\ntwo\n"}
        assert editor.terminals["terminal-0"].returncode == 3
        ended = editor.of(ToolCallProgress)[-1]
        assert (ended.content[0].type, ended.content[0].terminal_id) == ("terminal", "terminal-0")
        assert ended.raw_output == {"exit_code": 3}


async def test_an_editor_that_cannot_open_a_terminal_shows_the_output_as_text(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="echo one")], "Done.")
    async with editor_home.editor(able={"terminal": True}) as editor:
        session_id = await editor_home.new(editor)
        editor.refuses_terminals = True
        assert await say(editor, session_id, "run it") == "end_turn"
        assert "one" in texts_of(editor, "completed")[0]


async def test_a_terminal_on_another_machine_is_replaced_by_the_text(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="echo one")], "Done.")
    async with editor_home.editor(able={"terminal": True}) as editor:
        session_id = await editor_home.new(editor)
        editor.has_remote_terminals = True
        assert await say(editor, session_id, "run it") == "end_turn"
        await editor.until(lambda: editor.released)
        await editor.until(lambda: editor.of(ToolCallProgress)[-1].content[0].type == "content")
        assert "one" in editor.of(ToolCallProgress)[-1].content[0].content.text


async def test_an_editor_that_shows_output_messages_gets_them_with_the_call(editor_home: EditorHome):
    editor_home.write_script([call("shell", command="echo one; sleep 1; echo two")], "Done.")
    async with editor_home.editor(able={"terminal": True, "_meta": {"terminal_output": True}}) as editor:
        session_id = await editor_home.new(editor)
        assert await say(editor, session_id, "run it") == "end_turn"
        metas = [update.field_meta for update in editor.of(ToolCallProgress) if update.field_meta]
        assert metas[0]["terminal_info"] == {"terminal_id": metas[0]["terminal_output"]["terminal_id"]} | {
            "cwd": str(editor_home.workspace)
        }
        assert "".join(meta["terminal_output"]["data"] for meta in metas if "terminal_output" in meta) == "one\ntwo\n"
        assert metas[-1]["terminal_exit"]["exit_code"] == 0
        assert not editor.terminals
