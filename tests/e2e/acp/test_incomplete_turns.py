"""An editor receives the next step after an incomplete turn, and "continue" works in the same session."""

from typing import Any

import acp
import pytest

from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS, BrokenConnection, Refusal
from outrider.types.parts import ToolUsePart
from tests.e2e.acp.editor import EditorHome, say

READING = ToolUsePart(tool_id="call_1", tool_name="read", tool_input={"file_path": "notes.txt"})
OVERFLOW = SIMULATED_APIS["openai"].overflow
CONFIG = """model = "sim/gpt-4.1"
[providers.sim]
kind = "openai"
base_url = "{url}"
api_key_env = "SIM_KEY"
[retry]
attempts = 1
{more}"""


def configure(editor_home: EditorHome, server: Simulator, more: str = "") -> None:
    (editor_home.home / "config.toml").write_text(CONFIG.format(url=server.url("openai"), more=more))


@pytest.mark.parametrize(
    ("ending", "message"), [(OVERFLOW, "Compact the conversation"), (["It is", BrokenConnection()], 'Send "continue"')]
)
async def test_an_error_names_the_next_step_and_continue_works(editor_home: EditorHome, ending: Any, message: str):
    is_over: list[bool] = []
    async with Simulator(lambda _: "Milk." if is_over else ending) as server:
        configure(editor_home, server)
        async with editor_home.editor() as editor:
            session_id = await editor_home.new(editor)
            with pytest.raises(acp.RequestError, match=message):
                await say(editor, session_id, "what do I need?")
            is_over.append(True)
            before = len(server.requests)
            assert await say(editor, session_id, "continue") == "end_turn"
            assert editor.text_of().endswith("Milk.")
    continued = [str(request.body) for request in server.requests[before:]]
    assert any("what do I need?" in body and "continue" in body for body in continued)


async def test_a_refusal_and_a_limit_have_stop_reasons_and_next_steps(editor_home: EditorHome):
    def answer(request: Any) -> Any:
        match request.texts[-1]:
            case "refuse":
                return ["I would", Refusal()]
            case "never end":
                return [READING]
            case _:
                return "Milk."

    async with Simulator(answer) as server:
        configure(editor_home, server, "[limits]\nturns = 2\n")
        async with editor_home.editor() as editor:
            session_id = await editor_home.new(editor)
            for text, reason, message in (
                ("refuse", "refusal", "rephrase"),
                ("never end", "max_turn_requests", "raise the limit"),
            ):
                ended = await editor.agent.prompt(session_id=session_id, prompt=[acp.text_block(text)])
                assert (ended.stop_reason, message in str(ended.field_meta)) == (reason, True)
                assert await say(editor, session_id, "continue") == "end_turn"
                assert editor.text_of().endswith("Milk.")
