"""An editor receives the next step after an incomplete turn, and "continue" works in the same session."""

from typing import Any

import acp
import pytest

from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS, BrokenConnection, Refusal
from outrider.types.parts import ToolUsePart
from tests.e2e.acp.editor import Desk, say

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


def configure(desk: Desk, server: Simulator, more: str = "") -> None:
    (desk.home / "config.toml").write_text(CONFIG.format(url=server.url("openai"), more=more))


@pytest.mark.parametrize(
    ("ending", "words"), [(OVERFLOW, "Compact the conversation"), (["It is", BrokenConnection()], 'Send "continue"')]
)
async def test_an_error_names_the_next_step_and_continue_works(desk: Desk, ending: Any, words: str):
    is_over: list[bool] = []
    async with Simulator(lambda _: "Milk." if is_over else ending) as server:
        configure(desk, server)
        async with desk.editor() as editor:
            session_id = await desk.new(editor)
            with pytest.raises(acp.RequestError, match=words):
                await say(editor, session_id, "what do I need?")
            is_over.append(True)
            before = len(server.requests)
            assert await say(editor, session_id, "continue") == "end_turn"
            assert editor.said().endswith("Milk.")
    continued = [str(request.body) for request in server.requests[before:]]
    assert any("what do I need?" in body and "continue" in body for body in continued)


async def test_a_refusal_and_a_limit_have_stop_reasons_and_next_steps(desk: Desk):
    def answer(request: Any) -> Any:
        match request.texts[-1]:
            case "refuse":
                return ["I would", Refusal()]
            case "never end":
                return [READING]
            case _:
                return "Milk."

    async with Simulator(answer) as server:
        configure(desk, server, "[limits]\nturns = 2\n")
        async with desk.editor() as editor:
            session_id = await desk.new(editor)
            for text, reason, words in (
                ("refuse", "refusal", "rephrase"),
                ("never end", "max_turn_requests", "raise the limit"),
            ):
                ended = await editor.agent.prompt(session_id=session_id, prompt=[acp.text_block(text)])
                assert (ended.stop_reason, words in str(ended.field_meta)) == (reason, True)
                assert await say(editor, session_id, "continue") == "end_turn"
                assert editor.said().endswith("Milk.")
