"""The printed tree: readable, aligned, harmless, and within its width and encoding."""

import io

import pytest

from outrider.presentation.formats import fit_width, width_of
from outrider.tracing.records import Span, visible
from outrider.tracing.render import render_tree
from outrider.tracing.trace import Trace
from outrider.types.events import (
    ErrorEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
)
from tests.unit.tracing.event_builders import called, trace_of

WRITER = {"session_id": "s1", "agent_name": "writer"}

SMALL_RUN = [
    LLMResponseEvent(
        timestamp=1_000,
        duration_ms=1_000,
        model="large",
        stop_reason="tool_use",
        input_tokens=1_200,
        output_tokens=34,
        cost="0.0123",
        **WRITER,
    ),
    ToolExecutionStartedEvent(timestamp=1_000, tool_name="read", tool_input={"path": "a.md"}, call_id="1", **WRITER),
    ToolExecutionCompletedEvent(timestamp=1_015, tool_name="read", call_id="1", **WRITER),
    ToolExecutionStartedEvent(
        timestamp=1_020, tool_name="shell", tool_input={"command": "ls", "cwd": "x"}, call_id="2", **WRITER
    ),
    ToolExecutionCompletedEvent(
        timestamp=1_030,
        tool_name="shell",
        success=False,
        reason="denied",
        output_preview="not allowed",
        call_id="2",
        **WRITER,
    ),
    ToolExecutionStartedEvent(timestamp=1_040, tool_name="sleep", call_id="3", **WRITER),
    LoopCompletedEvent(timestamp=2_000, duration_ms=2_000, termination_reason="max_turns", **WRITER),
]

DRAWN = """\
span                              time   in → out     cost  outcome
─────────────────────────────────────────────────────────────────────────────────
agent writer                      2.0s  1.2k → 34  $0.0123  ■ max_turns
├─ model large                    1.0s  1.2k → 34  $0.0123  ✓ tool_use
├─ tool read(a.md)                15ms                      ✓
├─ tool shell(command=ls, cwd=x)  10ms                      ✗ denied: not allowed
└─ tool sleep                     ≥0ms                      … unfinished

total: 2.0s, 1 agent, 1 model call, 3 tool calls, 1.2k tokens, $0.0123"""

DRAWN_IN_ASCII = """\
span                               time   in -> out     cost  outcome
----------------------------------------------------------------------------------------
agent writer                       2.0s  1.2k -> 34  $0.0123  stopped max_turns
|- model large                     1.0s  1.2k -> 34  $0.0123  ok tool_use
|- tool read(a.md)                 15ms                       ok
|- tool shell(command=ls, cwd=x)   10ms                       FAILED denied: not allowed
`- tool sleep                     >=0ms                       ... unfinished

total: 2.0s, 1 agent, 1 model call, 3 tool calls, 1.2k tokens, $0.0123"""


class Output(io.StringIO):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding


def printed(trace: Trace, encoding: str = "utf-8") -> str:
    out = Output(encoding)
    trace.print_tree(out)
    out.getvalue().encode(encoding)
    return out.getvalue()


def test_a_run_is_drawn_with_times_tokens_cost_and_outcomes():
    assert printed(trace_of(*SMALL_RUN)).splitlines() == DRAWN.splitlines()


def test_an_output_that_cannot_take_the_signs_gets_plain_ones():
    assert printed(trace_of(*SMALL_RUN), "ascii").splitlines() == DRAWN_IN_ASCII.splitlines()


def test_the_tree_goes_to_stdout_by_default(capsys: pytest.CaptureFixture[str]):
    trace_of(*SMALL_RUN).print_tree()
    assert "tool read(a.md)" in capsys.readouterr().out


@pytest.mark.parametrize("width", [20, 34, 50, 64, 80, 100, 200])
def test_no_line_is_wider_than_asked(width: int):
    long = ErrorEvent(error_type="ProviderError", message="a long story " * 30, **WRITER)
    for line in trace_of(*SMALL_RUN[:-1], long).format_tree(width).splitlines():
        assert width_of(line) <= width


def test_a_narrow_tree_still_states_names_and_times():
    text = trace_of(*SMALL_RUN).format_tree(40)
    assert "tool read" in text
    assert "15ms" in text


def test_wide_characters_keep_the_columns_aligned():
    root = trace_of(
        ToolExecutionCompletedEvent(tool_name="検索", duration_ms=5, call_id="1", **WRITER),
        ToolExecutionCompletedEvent(tool_name="read", duration_ms=5, call_id="2", **WRITER),
        LoopCompletedEvent(timestamp=1, termination_reason="completed", **WRITER),
    )
    _, _, _, wide, narrow, *_ = root.format_tree().splitlines()
    assert width_of(wide.partition("5ms")[0]) == width_of(narrow.partition("5ms")[0])


def test_text_of_models_and_tools_cannot_steer_the_terminal():
    hostile = "\x1b[2J\r\n\x9b31m\u202eevil\u2066\x00"
    tree = printed(
        trace_of(
            ToolExecutionStartedEvent(tool_name=hostile, tool_input={hostile: hostile}, call_id="1", **WRITER),
            ErrorEvent(error_type=hostile, message=hostile, **WRITER),
        )
    )
    assert not set(tree) & set("\x1b\r\x9b\u202e\u2066\x00")
    assert len(tree.splitlines()) == 6


def test_a_price_that_is_partly_unknown_is_not_shown_as_the_whole():
    text = trace_of(*SMALL_RUN[:1], LLMResponseEvent(timestamp=1_500, model="home", **WRITER)).format_tree()
    assert "≥$0.0123" in text
    assert "1 of 2 answers came from models without a known price" in text


def test_an_answer_without_a_price_is_marked_not_shown_as_free():
    (line,) = [
        line
        for line in trace_of(LLMResponseEvent(model="home", **WRITER)).format_tree().splitlines()
        if "model home" in line
    ]
    assert "?" in line
    assert "$" not in line


def test_a_very_deep_tree_stays_on_the_page():
    text = Trace([called(f"c{level}", "a", level, f"c{level - 1}") for level in range(200)]).format_tree(80)
    assert max(map(width_of, text.splitlines())) <= 80
    assert "⋯" in text


def test_what_a_log_dropped_is_reported_below_the_tree():
    assert "7 older records were dropped" in render_tree(Span("run", "run", start=0, last=0, status="ok"), dropped=7)


def test_text_is_cut_by_columns_not_by_characters():
    assert fit_width("日本語テキスト", 7) == "日本語…"
    assert fit_width("short", 7) == "short"
    assert fit_width("anything", 2, "...") == ".."
    assert width_of(fit_width("é" * 50, 10)) <= 10


def test_every_control_character_is_shown_instead_of_obeyed():
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x202E, 0x2028, 0x2066, 0xFEFF, 0xD800):
        assert visible(chr(code)).isascii() and visible(chr(code)).isprintable(), hex(code)
    assert visible("plain ünïcode 文") == "plain ünïcode 文"
