"""What `outrider run` prints about a call while it runs."""

import asyncio
import io

import msgspec
from msgspec.structs import replace

from outrider.cli.commands.run import ROUTINE_EVENTS, create_printer
from outrider.cli.commands.run_output import HeadlessResult, RunInfo, RunStats
from outrider.cli.commands.run_progress import ProgressPrinter, printed_notice
from outrider.cli.commands.run_stream import StreamEventEncoder
from outrider.cli.output import Console
from outrider.engine.archive import TurnEnd
from outrider.types.codec import UnknownPart
from outrider.types.events import (
    AgentReturnedEvent,
    ContextCompactionEvent,
    ErrorEvent,
    Event,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    ModelSilentEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
)
from outrider.types.parts import WITHDRAWN, FilePart, ReasoningPart, ToolPart
from outrider.types.tool_state import ToolPending, ToolRunning


def printed(*events: Event, verbose: bool = False) -> list[str]:
    err = io.StringIO()
    progress = ProgressPrinter(Console(io.StringIO(), err, {}), verbose=verbose)
    for event in events:
        progress.on_event(event)
    return err.getvalue().splitlines()


def test_a_call_is_printed_with_its_title_once_and_with_its_error():
    running = ToolPending({"timeout": 5, "command": "make test"}).start(1)
    assert isinstance(running, ToolRunning)
    call = ToolPart("c", "shell", running)
    failed = call.with_state(running.fail("killed", 2, reason="timeout"))
    lines = ["▸ make test", "✗ shell · errored · timeout: killed"]
    assert printed(*(PartUpdatedEvent(part=part) for part in (call, call, failed))) == lines


def test_retries_compactions_and_failed_agents_are_printed_as_everywhere():
    assert printed(
        RetryScheduledEvent(attempt=1, delay_ms=2500, error="overloaded", max_attempts=3),
        ContextCompactionEvent(tokens_before=120_000, tokens_after=8_000),
        AgentReturnedEvent(callee="ann", child_session_id="s", output="", success=False),
        AgentReturnedEvent(callee="bob", child_session_id="s", output="", success=True),
        ErrorEvent(error_type="ProviderError", message="printed at the end"),
    ) == [
        "▸ retrying in 2.5s: attempt 1 of 3 failed: overloaded",
        "▸ earlier messages were summarised (120k → 8.0k tokens)",
        "▸ ann failed",
    ]


def test_without_a_terminal_only_events_that_never_have_a_notice_are_skipped():
    for cls in ROUTINE_EVENTS:
        values = {int: 1, bool: True}
        fields = {field.name: values.get(field.type, "x") for field in msgspec.structs.fields(cls) if field.required}
        assert printed_notice(cls(**fields), verbose=True) is None, cls.__name__
    assert printed_notice(SessionUpdatedEvent(changes={"title": "a title"}), verbose=True) is None


class Weighed(Event, frozen=True, tag="Weighed"):
    grams: int = 0


def test_what_is_unknown_is_named_if_everything_is_wanted():
    events = Weighed(grams=3), PartUpdatedEvent(part=UnknownPart({"type": "hologram", "id": "1"}))
    assert printed(*events) == []
    assert printed(*events, verbose=True) == ["▸ Weighed", "▸ hologram"]


def test_an_event_of_a_program_is_a_line_of_the_stream():
    (line,) = StreamEventEncoder().encode_event(Weighed(session_id="s", agent_name="a", timestamp=5, grams=3))
    assert line == {
        "type": "event",
        "session_id": "s",
        "agent": "a",
        "time": 5,
        "name": "Weighed",
        "data": {"grams": 3},
    }


def test_a_call_that_waits_on_another_server_is_reported_with_the_server_that_needs_the_answer():
    err = io.StringIO()
    progress = ProgressPrinter(Console(io.StringIO(), err, {}), verbose=False)
    asked = ToolApprovalRequestedEvent(tool_name="push", description="at http://there:1: the tool push says ask")
    progress.on_event(asked)  # a call of a local tool is refused or asked about, and printed as such
    assert err.getvalue() == ""
    progress.on_event(replace(asked, server="http://there:1"))
    assert "push waits for approval at http://there:1: the tool push says ask" in err.getvalue()


def written(*events: Event, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(out, io.StringIO(), {})
    console.out_is_terminal = terminal
    printer = create_printer("text", console)
    info = RunInfo("s", "a", "p/m", "agent", "/")
    printer.start(info)
    for event in events:
        printer.on_event(event)
    printer.finish(HeadlessResult(info, TurnEnd("aborted"), RunStats(), 1))
    return out.getvalue()


def test_withdrawn_text_is_never_written():
    half = PartDeltaEvent(session_id="s", message_id="m", part_id="p1", delta="half a sen")
    retry = RetryScheduledEvent(session_id="s", attempt=1, delay_ms=0, error="reset", withdrawn=("p1",))
    whole = PartDeltaEvent(session_id="s", message_id="m", part_id="p2", delta="a whole sentence")
    end = LLMResponseEvent(session_id="s", stop_reason="stop")
    assert written(half, retry, whole, end, terminal=False) == "a whole sentence\n"
    assert written(half, retry, whole, end, terminal=True) == "a whole sentence\n"


def test_stream_json_names_withdrawn_parts():
    encoder = StreamEventEncoder()
    delta = PartDeltaEvent(session_id="s", message_id="m", part_id="p1", delta="half")
    retry = RetryScheduledEvent(session_id="s", attempt=1, delay_ms=5, error="reset", withdrawn=("p1",), model="b/m")
    silent = ModelSilentEvent(session_id="s", silent_ms=30_000, model="b/m")
    text, again, quiet = (line for event in (delta, retry, silent) for line in encoder.encode_event(event))
    assert text["part_id"] == "p1"
    assert (again["withdrawn"], again["model"]) == (["p1"], "b/m")
    assert (quiet["type"], quiet["silent_ms"]) == ("silent", 30_000)


def test_a_tool_of_the_vendor_is_a_line_for_people_and_for_programs():
    block = {"type": "server_tool_use", "name": "web_search", "input": {"query": "why cats purr"}}
    part = ReasoningPart("", provider_state={"family": "anthropic", "block": block})
    assert printed(PartUpdatedEvent(part=part)) == ["▸ web_search: why cats purr"]
    (line,) = StreamEventEncoder().encode_event(PartUpdatedEvent(session_id="s", part=part))
    assert (line["type"], line["title"], line["part_id"]) == ("vendor_tool", "web_search: why cats purr", part.id)
    assert printed(PartUpdatedEvent(part=ReasoningPart("", provider_state={"family": "anthropic"}))) == []


def test_a_file_of_the_model_is_named_with_and_without_a_terminal():
    sent = PartUpdatedEvent(part=FilePart("image/png", "data:image/png;base64,AAAA", "plot.png"))
    withdrawn = PartUpdatedEvent(part=replace(sent.part, metadata={WITHDRAWN: True}))
    assert printed(sent, withdrawn) == ["▸ file: plot.png · image/png · 3 B"]
    notices = [printed_notice(event, verbose=False) for event in (sent, withdrawn)]
    assert [notice and notice.text for notice in notices] == ["file: plot.png · image/png · 3 B", None]


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_terminal_shows_the_activity_until_the_turn_ends():
    err = TerminalText()
    console = Console(io.StringIO(), err, {"TERM": "xterm", "NO_COLOR": "1"})
    progress = ProgressPrinter(console, verbose=False, session_id="s")
    progress.on_event(LoopStartedEvent(session_id="s"))
    progress.on_event(PartDeltaEvent(session_id="s", message_id="m", part_id="p", delta="x" * 400))
    async with asyncio.timeout(10):
        while "writing" not in err.getvalue():
            await asyncio.sleep(0.01)
    status = "writing · 0s · 100 tokens"
    assert err.getvalue() == f"\r{status}"
    console.print_stderr("a notice")
    assert err.getvalue().endswith(f"tokens\r{' ' * len(status)}\ra notice\n"), "other text replaces the line"
    progress.on_event(LoopCompletedEvent(session_id="s", termination_reason="completed", total_turns=1, duration_ms=1))
    before = err.getvalue()
    await asyncio.sleep(0.4)
    assert err.getvalue() == before, "nothing is shown after the end"


def test_a_terminal_with_colours_erases_the_status_line_as_a_whole():
    err = TerminalText()
    console = Console(io.StringIO(), err, {"TERM": "xterm"})
    console.show_status("working")
    console.clear_status()
    assert err.getvalue() == "\r\x1b[2K\x1b[2mworking\x1b[0m\r\x1b[2K"


async def test_a_pipe_and_a_terminal_without_abilities_get_no_status_line():
    for err, environ in ((io.StringIO(), {"TERM": "xterm"}), (TerminalText(), {"TERM": "dumb"})):
        console = Console(io.StringIO(), err, environ)
        console.show_status("working")
        console.print_stderr("done")
        assert err.getvalue() == "done\n"
