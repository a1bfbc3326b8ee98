"""What a call writes is printed line by line while it runs, each line once, and its end where it ended."""

import io
import random
import sys

import pytest

from outrider.cli.jobs.following import TextPrinter
from outrider.cli.jobs.outputs import GAP, RunningOutputs, news
from outrider.sessions.records import PartChange
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending, ToolRunning

CALL = ToolPart("call_1", "shell", ToolPending({"command": "make"}), id="part")


def running(output: str = "") -> ToolPart:
    state = ToolPending({"command": "make"}).start(1)
    assert isinstance(state, ToolRunning)
    return CALL.with_state(state.progress(metadata={"output": output}) if output else state)


def done(output: str, **metadata: object) -> ToolPart:
    call = running()
    assert isinstance(call.state, ToolRunning)
    return call.with_state(call.state.complete(output, 2, metadata=metadata))


def failed(error: str) -> ToolPart:
    call = running()
    assert isinstance(call.state, ToolRunning)
    return call.with_state(call.state.fail(error, 2, reason="timeout"))


def printed(monkeypatch: pytest.MonkeyPatch, *parts: ToolPart) -> list[str]:
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    printer = TextPrinter()
    for seq, part in enumerate(parts, 1):
        printer.change(PartChange(seq, part, draft=False))
    return out.getvalue().splitlines()


def test_lines_are_printed_once_when_they_are_whole_and_the_last_ones_with_the_end(monkeypatch: pytest.MonkeyPatch):
    parts = running(), running("one\ntw"), running("one\ntwo\nthr"), done("one\ntwo\nthree\nfour\n", exit_code=0)
    assert printed(monkeypatch, *parts) == [
        "· shell make",
        *("  one", "  two", "  three", "  four"),
        "✓ shell make",
    ]


def test_a_call_that_was_cut_off_says_why_and_does_not_repeat_what_it_wrote(monkeypatch: pytest.MonkeyPatch):
    words = "killed after its time limit of 5 s\n\nIts output until then:\none\ntw"
    assert printed(monkeypatch, running("one\ntw"), failed(words)) == [
        "· shell make",
        *("  one", "  tw"),
        "✗ shell make: killed after its time limit of 5 s",
    ]
    assert printed(monkeypatch, running(), failed(words))[1:] == f"✗ shell make: {words}".splitlines()


def test_a_command_that_failed_is_not_shown_as_if_it_had_gone_well(monkeypatch: pytest.MonkeyPatch):
    assert printed(monkeypatch, done("no such target", exit_code=2)) == ["✗ shell make: exit code 2"]


def test_of_a_long_output_whose_end_alone_is_kept_every_line_is_printed_once():
    rng = random.Random(7)
    lines = [f"{number}: {'x' * rng.randrange(30)}" for number in range(400)]
    text, outputs, shown, at = "\n".join(lines), RunningOutputs(), list[str](), 0
    while at < len(text):
        at += rng.randrange(1, 200)
        shown += outputs.lines(running(text[max(0, at - 400) : at]))
    assert shown + outputs.lines(done(text)) == lines


def test_what_was_never_seen_is_marked_as_missing():
    assert news("abc", "xyz") == f"{GAP}xyz"
    assert (news("", "abc"), news("abc", "abc"), news("abc", "bcd")) == ("abc", "", "d")
