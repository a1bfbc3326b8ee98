"""The console listener prints one line per event and escapes control sequences."""

import builtins
import io
import sys

import msgspec
import pytest
from rich.console import Console

from outrider.event_bus import EventBus
from outrider.tracing.console import EventLogger
from outrider.types.events import (
    EVENT_TYPES,
    AgentCalledEvent,
    AgentReturnedEvent,
    ContextCompactionEvent,
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StateChangedEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolOutputEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)

HOSTILE = "[bold red]x[/] [link=file:///etc/passwd]y[/link] \x1b]0;title\x07\x1b[2J\u202e\r"


def lines_of(*events: Event, verbose: bool = False, **options) -> list[str]:
    out = io.StringIO()
    bus = EventBus()
    EventLogger(Console(file=out, **options), verbose=verbose).attach(bus)
    for event in events:
        bus.publish(event)
    return out.getvalue().splitlines()


def without_time(line: str) -> str:
    """Without the time of day."""
    return line[10:].strip()


def test_each_event_is_reported_in_one_line():
    lines = lines_of(
        LoopStartedEvent(agent_name="writer", user_message="Write\na poem"),
        LLMResponseEvent(
            agent_name="writer", model="large", stop_reason="tool_use", input_tokens=1_200, output_tokens=30,
            cost="0.0123", duration_ms=2_100,
        ),
        ToolExecutionStartedEvent(agent_name="writer", tool_name="read", tool_input={"path": "a.md"}),
        ToolExecutionCompletedEvent(agent_name="writer", tool_name="read", duration_ms=12, output_preview="secret"),
        ToolExecutionCompletedEvent(tool_name="shell", success=False, reason="denied", output_preview="not allowed"),
        AgentCalledEvent(agent_name="writer", callee="reviewer", message="look"),
        AgentReturnedEvent(agent_name="writer", callee="reviewer", output="fine", duration_ms=3_000),
        RetryScheduledEvent(attempt=2, delay_ms=1_500, error="overloaded"),
        ErrorEvent(error_type="ProviderError", message="no"),
        LoopCompletedEvent(agent_name="writer", termination_reason="completed", total_turns=2),
    )  # fmt: skip
    assert [without_time(line) for line in lines] == [
        "writer       ● started Write a poem",
        "writer       ← answer large, tool_use, 1.2k tokens in, 30 out, $0.0123, 2.1s",
        "writer       ▸ read path=a.md",
        "writer       ✓ read 12ms",
        "⊘ shell canceled, denied, not allowed",
        "writer       ⇒ calls reviewer look",
        "writer       ⇐ reviewer returned 3.0s, fine",
        "? retry retrying in 1.5s: attempt 2 failed: overloaded",
        "✗ ProviderError no",
        "writer       ■ ended completed, 2 turns",
    ]


def test_small_events_are_reported_only_when_everything_is_wanted():
    small = [TurnStartedEvent(turn_number=2, max_turns=9), StateChangedEvent(old_state="a", new_state="b")]
    assert lines_of(*small) == []
    assert [without_time(line) for line in lines_of(*small, verbose=True)] == ["· turn 2 of 9", "· state a became b"]


def test_an_event_without_an_own_line_is_reported_by_its_notice():
    servers = [{"name": "db", "state": "failed", "error": "no such file"}]
    lines = lines_of(
        SessionUpdatedEvent(changes={"mcp_servers": servers}),
        SessionUpdatedEvent(changes={"title": "a title"}),
        ContextCompactionEvent(tokens_before=12_000, tokens_after=900),
        ToolExecutionCompletedEvent(tool_name="shell", duration_ms=700, exit_code=1),
    )
    assert [without_time(line) for line in lines] == [
        "? mcp MCP: db is not available (failed): no such file",
        "· compaction earlier messages were summarised (12.0k → 900 tokens)",
        "! shell exit code 1, 700ms",
    ]


def test_one_of_a_thing_is_not_counted_in_the_plural():
    lines = lines_of(
        LLMRequestEvent(message_count=1),
        MessageAddedEvent(role="user", part_count=1),
        TurnCompletedEvent(turn_number=1, tool_calls_count=1),
        LoopCompletedEvent(termination_reason="completed", total_turns=1),
        verbose=True,
    )
    assert [without_time(line).rpartition("1 ")[2] for line in lines] == ["message", "part", "call", "turn"]


def test_outputs_and_deltas_are_shown_when_everything_is_wanted():
    deltas = [PartDeltaEvent(message_id="m", part_id="p", delta=piece) for piece in ("Once ", "upon\na", " time")]
    end = ToolExecutionCompletedEvent(tool_name="read", duration_ms=1, output_preview="the text")
    output = ToolOutputEvent(tool_name="shell", output="building\n")
    assert len(lines_of(*deltas, output, end)) == 1
    lines = [without_time(line) for line in lines_of(*deltas, output, end, verbose=True)]
    assert lines == ["· Once upon", "· building", "· a time", "✓ read 1ms, the text"]


def test_markup_and_control_characters_are_shown_not_obeyed():
    events = [
        LoopStartedEvent(agent_name=HOSTILE, user_message=HOSTILE),
        ToolExecutionStartedEvent(tool_name=HOSTILE, tool_input={HOSTILE: HOSTILE}),
        PartDeltaEvent(message_id="m", part_id="p", delta=HOSTILE),
        ErrorEvent(error_type=HOSTILE, message=HOSTILE),
    ]
    lines = lines_of(*events, verbose=True, width=500)
    assert len(lines) == 4
    assert "[bold red]x[/]" in lines[0]
    assert not set("".join(lines)) & set("\x1b\x07\r\u202e")


def test_every_kind_of_event_can_be_reported():
    values = {int: 1, bool: True}
    for cls in EVENT_TYPES.values():
        fields = {field.name: values.get(field.type, "x\n") for field in msgspec.structs.fields(cls) if field.required}
        assert len(lines_of(cls(**fields), verbose=True)) == 1, cls.__name__


def test_an_event_of_the_users_own_is_named_when_everything_is_wanted():
    class GardenWatered(Event):
        pass

    assert lines_of(GardenWatered()) == []
    assert without_time(lines_of(GardenWatered(), verbose=True)[0]) == "· GardenWatered"


def test_a_terminal_shows_what_fits_and_a_file_gets_all():
    event = ErrorEvent(error_type="E", message="long " * 40)
    (cut,) = lines_of(event, width=40, force_terminal=True, no_color=True)
    (whole,) = lines_of(event, width=40)
    assert cut.count("…") == 1
    assert len(whole) > 200


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    (line,) = lines_of(ErrorEvent(error_type="E", message="m"), force_terminal=True, width=80)
    assert "[31" not in line.replace("\x1b", "")


def test_an_output_that_cannot_take_the_signs_gets_plain_ones():
    raw = io.BytesIO()
    bus = EventBus()
    EventLogger(Console(file=io.TextIOWrapper(raw, "ascii", write_through=True))).attach(bus)
    bus.publish(ErrorEvent(error_type="E", message="naïve ✓"))
    assert raw.getvalue().decode("ascii")[10:].strip() == r"x E na\xefve \u2713"


def test_nothing_is_printed_after_detaching():
    out = io.StringIO()
    bus = EventBus()
    detach = EventLogger(Console(file=out)).attach(bus)
    detach()
    bus.publish(ErrorEvent(error_type="E", message="m"))
    assert out.getvalue() == ""


def test_without_rich_lines_go_to_plain_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    real_import = builtins.__import__

    def without_rich(name: str, *rest):
        if name.partition(".")[0] == "rich":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    bus = EventBus()
    EventLogger().attach(bus)
    bus.publish(ToolExecutionCompletedEvent(agent_name="writer", tool_name="read\x1b[2J", duration_ms=3))
    assert without_time(capsys.readouterr().err) == r"writer       ✓ read\x1b[2J 3ms"


def test_a_plain_file_is_written_to_without_rich():
    out = io.StringIO()
    bus = EventBus()
    EventLogger(out).attach(bus)
    bus.publish(ErrorEvent(error_type="E", message="m"))
    assert without_time(out.getvalue()) == "✗ E m"


def test_importing_the_logger_does_not_load_rich():
    import subprocess

    code = "import sys, outrider.tracing.console, outrider.tracing.trace; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
