"""The widgets of the screen, each in a small application."""

import asyncio
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual._compositor import Compositor
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Key, Paste
from textual.geometry import Offset, Region
from textual.pilot import Pilot
from textual.screen import Screen
from textual.scrollbar import ScrollBarRender
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Input, OptionList, Static, TextArea

from outrider.engine.frontend import AskedQuestion
from outrider.presentation.activity import ChildAgent, ChildProcess, SideActivity
from outrider.presentation.approvals import ApprovalView
from outrider.presentation.items import FileItem, Notice, NoticeItem, TextItem, ToolCallItem, TranscriptItem, UserItem
from outrider.tui import dialogs as panels
from outrider.tui.commands import command_choices
from outrider.tui.completion import CompletionList
from outrider.tui.composer import Composer, InputHistory
from outrider.tui.dialogs import ApprovalPanel, ChoicePanel, DialogQueue, QuestionPanel
from outrider.tui.rendering.items import item_lines
from outrider.tui.rendering.tool_calls import effect_lines
from outrider.tui.screen import LineCompositor, MainScreen
from outrider.tui.theme import DARK, LIGHT, build_theme
from outrider.tui.widgets.modals import PickerItem, PickerScreen, TextField
from outrider.tui.widgets.status import QueuedInputLines, StatusInfo, side_lines, status_text
from outrider.tui.widgets.transcript import TranscriptWidget
from outrider.types.outcomes import BlockedAccess, CommandOutcome, OutcomeFile, RuleWidth
from outrider.types.parts import FilePart, ToolPart
from outrider.types.tool_state import (
    EndedTime,
    RunningTime,
    TodoItem,
    ToolCompleted,
    ToolError,
    ToolPending,
    ToolRunning,
)


class Stage(App[None]):
    """Shows some widgets with the application's own colours."""

    def __init__(self, *widgets: Any) -> None:
        super().__init__()
        for palette in (DARK, LIGHT):
            self.register_theme(build_theme(palette))
        self.theme = "outrider-dark"
        self._widgets = widgets

    def compose(self) -> ComposeResult:
        yield from self._widgets


def shown(transcript: TranscriptWidget) -> list[str]:
    return [transcript.render_line(y).text.rstrip() for y in range(transcript.size.height)]


async def wait_until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await pilot.pause(0.02)


def approval(id: str, command: str, **more: Any) -> ApprovalView:
    arguments = {"command": command}
    return ApprovalView(id=id, session_id="s", call_id="c", tool="shell", arguments=arguments, reason="why", **more)


def plain(item: TranscriptItem, width: int = 60) -> list[str]:
    return [line.plain.rstrip() for line in item_lines(item, width, DARK)]


def items_of(number: int) -> list[TranscriptItem]:
    return [TextItem(f"w{n}", f"m{n}", f"paragraph {n}", streaming=False) for n in range(number)]


async def laid_out(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """A busy machine may take longer than a pause for it."""
    async with asyncio.timeout(60):
        while not true():
            await pilot.pause()
    await pilot.pause()


async def test_the_transcript_stays_at_its_end_and_leaves_those_alone_who_scrolled_up():
    transcript = TranscriptWidget()
    async with Stage(transcript).run_test(size=(60, 20)) as pilot:
        transcript.display = True
        await pilot.pause()
        items = items_of(100)
        transcript.show_items(items)
        await pilot.pause()
        assert "paragraph 99" in "\n".join(shown(transcript))
        transcript.scroll_to(y=40, animate=False, immediate=True)
        await pilot.pause()
        before = shown(transcript)
        transcript.show_items([*items, TextItem("new", "m", "more", streaming=False)])
        await pilot.pause()
        assert shown(transcript)[:-1] == before[:-1]
        assert "↓ 2 new lines · ctrl+end" in shown(transcript)[-1]


async def test_a_queued_input_takes_one_line_of_a_narrow_terminal_and_the_key_stays_visible():
    queued = QueuedInputLines()
    async with Stage(queued).run_test(size=(40, 15)) as pilot:
        queued.show_inputs([("steer", "a text that is longer than the line")])
        await laid_out(pilot, lambda: queued.size.height > 0)
        assert [queued.render_line(y).text.strip() for y in range(queued.size.height)] == [
            "↳ next step  a text …  ↑: edit again"
        ]


class CountingTranscript(TranscriptWidget):
    """Counts the lines that are drawn."""

    drawn = 0

    def render_line(self, y: int) -> Strip:
        self.drawn += 1
        return super().render_line(y)


async def test_a_growing_answer_draws_only_the_lines_that_changed():
    transcript = CountingTranscript()
    async with Stage(transcript).run_test(size=(60, 30)) as pilot:
        transcript.display = True
        await pilot.pause()
        answer = TextItem("answer", "m", "An answer begins")
        items = [*items_of(100), answer]
        transcript.show_items(items)
        await laid_out(pilot, lambda: transcript.drawn >= 30)
        for delta, lines in ((" with", 1), ("\n\nanother", 3), ("\n\n- one\n- two", 4)):
            transcript.drawn = 0
            answer.append(delta)
            transcript.show_items(items)
            await laid_out(pilot, lambda: transcript.drawn > 0)
            assert transcript.drawn <= lines, f"{transcript.drawn} lines for {delta!r}"
            strips = transcript.render_lines(Region(0, 0, 60, 30))
            assert [strip.text[:58].strip() for strip in strips] == [line.strip() for line in shown(transcript)]


class CountingBar(ScrollBarRender):
    """Counts how often the scrollbar is drawn."""

    drawn = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        CountingBar.drawn += 1


async def test_the_scrollbar_of_a_growing_answer_is_drawn_only_when_it_changes():
    transcript = TranscriptWidget()
    async with Stage(transcript).run_test(size=(60, 30)) as pilot:
        transcript.display = True
        await pilot.pause()
        bar = transcript.vertical_scrollbar
        bar.renderer = CountingBar
        items = items_of(1000)
        transcript.show_items(items)
        await laid_out(pilot, lambda: CountingBar.drawn > 0)
        CountingBar.drawn = 0
        for number in range(5):
            items = [*items, TextItem(f"new{number}", "m", "more", streaming=False)]
            transcript.show_items(items)
            await laid_out(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y)
        assert CountingBar.drawn == 0
        assert (bar.window_virtual_size, bar.position) == (transcript.virtual_size.height, transcript.max_scroll_y)
        transcript.scroll_to(y=0, animate=False, immediate=True)
        await laid_out(pilot, lambda: CountingBar.drawn > 0)
        CountingBar.drawn = 0
        transcript.show_items(items[:40])
        await laid_out(pilot, lambda: CountingBar.drawn > 0)


class CountingFrame(Vertical):
    """Counts how often it is drawn, and which messages about the text reach it."""

    drawn = 0

    def __init__(self, *widgets: Any) -> None:
        super().__init__(*widgets)
        self.received: list[TextArea.Changed | TextArea.SelectionChanged] = []

    def render_lines(self, crop: Region) -> list[Strip]:
        self.drawn += 1
        return super().render_lines(crop)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.received.append(event)

    def on_text_area_selection_changed(self, event: TextArea.SelectionChanged) -> None:
        self.received.append(event)


class CountingComposer(Composer):
    """Counts how often the style sheet is read."""

    read = 0

    def get_component_rich_style(self, *names: str, partial: bool = False) -> Style:
        self.read += 1
        return super().get_component_rich_style(*names, partial=partial)


class MainStage(Stage):
    """Shows some widgets on the screen of the application."""

    def get_default_screen(self) -> Screen[None]:
        return MainScreen()


async def test_a_key_draws_the_composer_alone_and_reads_no_style_sheet():
    composer = CountingComposer(CompletionList(), InputHistory(None, Path("/ws")), ())
    frame = CountingFrame(composer)
    stage = MainStage(frame)
    async with stage.run_test(size=(60, 20)) as pilot:
        composer.focus()
        await laid_out(pilot, lambda: composer.has_focus and composer.read > 0)
        await pilot.press("a")
        frame.drawn = composer.read = 0
        await pilot.press("b", "c")
        await laid_out(pilot, lambda: composer.text == "abc")
        assert composer.render_line(0).text.startswith("abc")
        assert (frame.drawn, composer.read, frame.received) == (0, 0, [])
        stage.theme = "outrider-light"
        await laid_out(pilot, lambda: composer.read > 0)
        colors = {segment.style.color.name for segment in composer.render_line(0) if segment.style and segment.text}
        assert build_theme(LIGHT).foreground in colors


async def test_a_change_right_after_a_frame_is_painted_without_waiting_for_a_clock():
    line = CountingFrame()
    async with MainStage(line).run_test(size=(60, 20)) as pilot:
        await laid_out(pilot, lambda: line.drawn > 0)
        for _ in range(3):
            line.drawn = 0
            line.refresh()
            for _ in range(20):  # the message passes the widget, the screen and the timer, each in an iteration
                await asyncio.sleep(0)
            assert line.drawn == 1


async def test_a_part_of_the_screen_is_drawn_as_textual_draws_it():
    transcript, below = TranscriptWidget(), Static("a line below")
    frame = Vertical(transcript, Horizontal(Static("one"), Static("two")))
    frame.styles.height = 18
    async with MainStage(frame, below).run_test(size=(60, 20)) as pilot:
        transcript.display = True
        transcript.show_items(items_of(100))
        await laid_out(pilot, lambda: transcript.max_scroll_y > 0)
        compositor = pilot.app.screen._compositor
        assert isinstance(compositor, LineCompositor)
        for crop in (Region(0, 0, 60, 20), Region(3, 4, 20, 3), Region(59, 0, 1, 20), Region(0, 16, 60, 4)):
            odd = {y for y in crop.line_range if y % 3}.__contains__
            expected, drawn = Compositor._render_chops(compositor, crop, odd), compositor._render_chops(crop, odd)
            for y in filter(odd, crop.line_range):
                ends = compositor.cuts[y][1:]
                wanted = {
                    start: strip.text
                    for (start, strip), end in zip(expected[y].items(), ends, strict=True)
                    if start < crop.right and end > crop.x
                }
                assert {start: strip.text for start, strip in drawn[y].items() if strip is not None} == wanted


async def test_the_end_stays_in_view_when_a_question_takes_room_below():
    transcript, below = TranscriptWidget(), Static()
    async with Stage(transcript, below).run_test(size=(60, 20)) as pilot:
        transcript.display = True
        transcript.show_items(items_of(100))
        for height in (2, 10):
            below.styles.height = height
            await laid_out(pilot, lambda height=height: transcript.size.height == 20 - height)
            assert "paragraph 99" in "\n".join(shown(transcript))
        transcript.scroll_to(y=40, animate=False, immediate=True)
        below.styles.height = 2
        await laid_out(pilot, lambda: transcript.size.height == 18)
        assert "paragraph 99" not in "\n".join(shown(transcript))


async def test_older_items_at_the_top_do_not_move_what_is_read():
    transcript = TranscriptWidget()
    async with Stage(transcript).run_test(size=(60, 20)) as pilot:
        transcript.display = True
        await pilot.pause()
        items = items_of(60)
        transcript.show_items(items[30:])
        await pilot.pause()
        transcript.scroll_to(y=3, animate=False, immediate=True)
        await pilot.pause()
        before = shown(transcript)
        transcript.show_items(items)
        await pilot.pause()
        assert shown(transcript) == before


async def test_a_click_unfolds_what_is_long():
    output = "\n".join(f"row {n}" for n in range(40))
    part = ToolPart(call_id="c", tool="shell", state=ToolCompleted({"command": "seq 40"}, output, EndedTime(0, 1)))
    transcript = TranscriptWidget()
    async with Stage(transcript).run_test(size=(60, 60)) as pilot:
        transcript.display = True
        await pilot.pause()
        transcript.show_items([ToolCallItem(part)])
        await pilot.pause()
        assert "… 32 lines above" in "\n".join(shown(transcript))
        assert "row 39" in "\n".join(shown(transcript))
        await pilot.click(TranscriptWidget, offset=(5, 2))
        await pilot.pause()
        assert "row 0" in "\n".join(shown(transcript))


def test_lines_above_an_output_include_those_that_the_model_does_not_get():
    output = "\n".join(f"row {n}" for n in range(40))
    state = ToolCompleted({"command": "seq"}, output, EndedTime(0, 1), metadata={"truncated": {"lines": 20_001}})
    ended = ToolCallItem(ToolPart(call_id="c", tool="shell", state=state))
    assert "… 19,993 lines above" in [line.plain.strip() for line in item_lines(ended, 60, DARK)]
    running = ToolCallItem(ToolPart(call_id="c", tool="shell", state=ToolRunning({"command": "seq"}, RunningTime(0))))
    running.append_output("".join(f"row {n}\n" for n in range(5000)))
    assert "… 4,992 lines above" in [line.plain.strip() for line in item_lines(running, 60, DARK)]


def test_a_message_of_megabytes_is_drawn_at_once():
    item = UserItem("u", "a line of a log file with wörds\n" * 160_000)
    start = time.process_time()
    lines = [line.plain.strip("▌ ") for line in item_lines(item, 80, DARK)]
    assert lines[-1] == "… 159,940 more lines"
    item.expanded = True
    assert len(item_lines(item, 80, DARK)) == 2001
    assert time.process_time() - start < 1  # 5 s, if all lines are wrapped


@pytest.mark.parametrize("width", [20, 40, 120])
async def test_no_line_is_wider_than_the_screen(width):
    transcript = TranscriptWidget()
    items: list[TranscriptItem] = [
        UserItem("s", "a long sentence of a person " * 5),
        TextItem("w", "", "`" + "x" * 200 + "`\n\n| a | b |\n|---|---|\n| " + "long " * 9 + " | y |", streaming=False),
        NoticeItem("n", Notice("error", "error", "something went wrong " * 8)),
        ToolCallItem(ToolPart(call_id="c", tool="edit", state=ToolCompleted(
            {"file_path": "a/very/long/path/" * 5}, "ok", EndedTime(0, 9000),
            metadata={"diff": "--- a\n+++ a\n@@ -1 +1 @@\n-" + "o" * 150 + "\n+" + "n" * 150, "added": 1, "removed": 1},
        ))),
    ]  # fmt: skip
    async with Stage(transcript).run_test(size=(width, 80)) as pilot:
        transcript.display = True
        await pilot.pause()
        transcript.show_items(items)
        await pilot.pause()
        room = transcript.text_width
        assert all(len(row) <= room for row in shown(transcript))


def test_a_file_of_the_model_is_shown_with_name_type_and_size():
    image = FilePart("image/png", "data:image/png;base64," + "A" * 4000, "plot\x1b[2J.png")
    assert plain(FileItem(image)) == ["  ◫ plot.png · image/png · 3.0 kB"]


async def test_details_are_hidden_until_they_are_expanded():
    transcript = TranscriptWidget()
    calls = [
        ToolCallItem(ToolPart(call_id=f"c{n}", tool="read", state=ToolCompleted({}, "", EndedTime(0, 1))))
        for n in (1, 2)
    ]
    detail = NoticeItem("d", Notice("detail", "files", "changed: a.py"))
    async with Stage(transcript).run_test(size=(60, 12)) as pilot:
        transcript.display = True
        await pilot.pause()
        transcript.show_items([calls[0], detail, calls[1]])
        await pilot.pause()
        assert [row for row in shown(transcript) if row][:2] == shown(transcript)[:2]  # no empty line for the detail
        assert not any("a.py" in row for row in shown(transcript))
        transcript.expand_all(expand=True)
        transcript.show_items([calls[0], detail, calls[1]])
        await pilot.pause()
        assert "· changed: a.py" in shown(transcript)


def test_a_diff_is_drawn_with_its_numbers_and_control_characters_as_escapes():
    diff = "--- a\n+++ a\n@@ -7,2 +7,2 @@\n same\r\n-old\x1b[2J\r\n+new\r\n@@ -20 +20 @@\n-x\n+y\n"
    state = ToolCompleted(
        {"file_path": "a"}, "ok", EndedTime(0, 1200), metadata={"diff": diff, "added": 2, "removed": 2}
    )
    head, *body = plain(ToolCallItem(ToolPart(call_id="c", tool="edit", state=state)))
    assert head.startswith("● edit  a ")
    assert head.endswith("done · +2 −2 · 1.2s")
    assert body == ["     7   same", r"     8 - old\x1b[2J", "     8 + new", "     ⋮", "    20 - x", "    20 + y"]


@pytest.mark.parametrize(("reason", "words"), [("canceled", "canceled"), ("rejected", "canceled · rejected")])
def test_the_reason_of_a_call_that_did_not_run_does_not_repeat_its_status(reason, words):
    heading, *_ = plain(ToolCallItem(ToolPart("c", "read", ToolPending().fail("not run", 1, reason=reason))))
    assert heading.split("  ")[-1].strip() == words


def test_why_a_call_failed_is_shown_in_words():
    state = ToolError({"path": "a"}, "There is no tool called x.", EndedTime(0, 0), "invalid_input")
    assert plain(ToolCallItem(ToolPart(call_id="c", tool="x", state=state)))[0].endswith("errored · invalid input")


def test_an_approval_shows_every_row_of_a_patch():
    patch = "*** Begin Patch\n*** Add File: a.py\n+one\n*** End Patch\n+after the end"
    lines = [line.plain.rstrip() for line in effect_lines("apply_patch", {"patch": patch}, 40, DARK)]
    assert lines == ["  *** Begin Patch", "  *** Add File: a.py", "+ one", "  *** End Patch", "+ after the end"]


def test_an_approval_shows_arguments_that_no_diff_shows():
    arguments = {"file_path": "a.py", "old_string": "x", "new_string": "y", "replace_all": True, "content": "z"}
    lines = [line.plain.rstrip() for line in effect_lines("edit", arguments, 40, DARK)]
    assert lines == ["replace_all: true", "content: z", "- x", "+ y"]


HIDING = ("\x1b]0;", "\x1bP", "\x9d", "\x90", "\x1b[8m")


def test_an_approval_hides_nothing_behind_control_sequences():
    for start in HIDING:
        text = f"ls {start}; rm -rf data\nid \x07\x00\u202e"
        path = f"notes{start}.sh"
        request = ApprovalView(
            id="a", session_id="s", call_id="c", tool="write", arguments={"file_path": path, "content": text}, reason=""
        )
        command = effect_lines("shell", {"command": text, "workdir": f"a{start}b"}, 60, DARK)
        for lines in (command, panels.request_lines(request, 60, DARK)):
            shown = "\n".join(line.plain for line in lines)
            assert "; rm -rf data" in shown
            assert "id \\x07\\x00\\u202e" in shown
            assert start.replace("\x1b", "\\x1b").replace("\x9d", "\\x9d").replace("\x90", "\\x90") in shown
            assert not {"\x1b", "\x9d", "\x90", "\x07", "\x00", "\u202e"} & set(shown)


def test_an_approval_shows_the_arguments_beside_a_preview_and_whole_facts():
    preview = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n"
    arguments = {"file_path": "a.txt", "text": "two", "publish_to": "evil.example"}
    asked = ApprovalView(
        id="a", session_id="s", call_id="c", tool="own", arguments=arguments, reason="", preview=preview
    )
    shown = "\n".join(line.plain for line in panels.request_lines(asked, 60, DARK))
    assert '"publish_to": "evil.example"' in shown
    assert "two" in shown
    long = approval("a", "ls", outcome=CommandOutcome(left_running=(f"sleep {'1' * 2_000}; curl evil.example",)))
    assert "curlevil.example" in "".join(
        line.plain.replace(" ", "").strip() for line in panels.request_lines(long, 60, DARK)
    )


def test_a_risky_fact_of_an_approval_is_emphasized():
    files = (OutcomeFile(path="PROTECTED", kind="created"),)
    outcome = CommandOutcome(files=files, blocked=(BlockedAccess("network", "a.example"),), predicted="it connects")
    lines = {line.plain.strip(): line for line in panels.request_lines(approval("a", "ls", outcome=outcome), 60, DARK)}
    assert lines["needs: a.example"].style == DARK.style("warn")
    assert lines["created: PROTECTED"].style == DARK.style("text")


async def test_a_small_terminal_shows_every_answer_and_scrolls_what_is_above():
    files = tuple(OutcomeFile(path=f"build/f{n}", kind="created") for n in range(40))
    widths = (
        RuleWidth(id="exact", label="this command", rules=("shell(make)",)),
        RuleWidth(id="folder", label="this folder", rules=("may write /build/**",)),
    )
    request = approval("a1", "make", outcome=CommandOutcome(files=files, exit_code=3), offered=widths)
    asking, panel = DialogQueue(), ApprovalPanel(request, armed_after=0)

    async def on_answer(answer: str, text: str) -> None: ...

    stage = Stage(asking)
    async with stage.run_test(size=(80, 24)) as pilot:
        await asking.add_panel(panel, on_answer)
        await wait_until(pilot, lambda: bool(panel.query(".keys")))
        keys, scroll = panel.query_one(".keys", Static), panel.query_one(VerticalScroll)
        await wait_until(pilot, lambda: scroll.max_scroll_y > 20 and panel.content_region.contains_region(keys.region))
        labels = ("keep the changes", "keep some", "this session", "always", "drop them", "because", "wider rule")
        await wait_until(pilot, lambda: all(label in str(keys.render()) for label in labels))
        assert "shell(make)" in str(keys.render())
        await pilot.press("right")
        assert "may write /build/**" in str(keys.render())
        await pilot.press(*["down"] * 5)
        assert scroll.scroll_y == 5
        panel.scroll_page(1)
        assert scroll.scroll_y == 5 + scroll.size.height - 1
        await pilot.press("f")
        field = panel.query_one(Input)
        await wait_until(pilot, lambda: field.region.height == 1 and panel.content_region.contains_region(field.region))
        assert panel.content_region.contains_region(keys.region)
        assert panel.region.height <= 24 * 7 // 10
        await pilot.resize_terminal(80, 50)
        await pilot.press("escape")
        await wait_until(pilot, lambda: scroll.size.height == 25)


@pytest.mark.parametrize("size", [(40, 12), (40, 15), (80, 16), (80, 24)])
async def test_the_field_for_a_reason_is_visible_in_a_small_terminal(
    size: tuple[int, int],
):
    files = tuple(OutcomeFile(path=f"build/f{n}", kind="created") for n in range(4))
    widths = (RuleWidth(id="exact", label="this command", rules=("shell(make)",)),)
    panel = ApprovalPanel(approval("a1", "make", outcome=CommandOutcome(files=files), offered=widths), armed_after=0)
    asking, answers = DialogQueue(), list[tuple[str, str]]()

    async def on_answer(answer: str, text: str) -> None:
        answers.append((answer, text))

    async with Stage(asking).run_test(size=size) as pilot:
        await asking.add_panel(panel, on_answer)
        await wait_until(pilot, lambda: bool(panel.query(".keys")) and panel.has_focus)
        await pilot.press("r")
        field, keys = panel.query_one(Input), panel.query_one(".keys", Static)
        await wait_until(pilot, lambda: field.region.height == 1 and panel.content_region.contains_region(field.region))
        assert "back" in str(keys.render())
        await pilot.press(*"not now")
        assert field.value == "not now"
        await pilot.press("escape")
        await wait_until(pilot, lambda: "drop them, because" in str(keys.render()))
        await pilot.press("r", "enter")
        await wait_until(pilot, lambda: answers == [("no-because", "not now")])


async def test_a_key_that_was_meant_for_something_else_does_not_answer():
    answers: list[tuple[str, str]] = []
    asking = DialogQueue()

    async def on_answer(answer: str, text: str) -> None:
        answers.append((answer, text))

    async with Stage(asking).run_test(size=(80, 30)) as pilot:
        panel = ApprovalPanel(approval("a1", "ls", rules=("shell(ls)",), can_last=True), armed_after=3600)
        await asking.add_panel(panel, on_answer)
        await pilot.press(*"yes, always")
        assert answers == []
        panel.armed_after = 0
        await pilot.press("/")  # the start of a command, not an answer
        panel.armed_after = 3600
        await pilot.press(*"find")
        assert answers == []
        panel.armed_after = 0
        await pilot.press("y")
        await pilot.pause()
        assert answers == [("once", "")]
        assert not asking.is_open


async def test_questions_wait_for_their_turn_and_one_answered_by_another_front_end_is_removed():
    answers: list[str] = []
    asking = DialogQueue()

    def taking(name: str) -> Any:
        async def on_answer(answer: str, _: str) -> None:
            answers.append(f"{name} {answer}")

        return on_answer

    async with Stage(asking).run_test(size=(80, 30)) as pilot:
        for name in ("one", "two", "three"):
            await asking.add_panel(ApprovalPanel(approval(name, name), armed_after=0), taking(name))
        await asking.drop_approvals("two")
        await pilot.pause()
        await pilot.press("n")
        await pilot.pause()
        await pilot.press("s")  # not offered: this call can be allowed once only
        await pilot.press("y")
        await pilot.pause()
    assert answers == ["one no", "three once"]


async def test_yes_to_all_is_about_the_kind_of_the_shown_question_and_about_what_the_user_has_seen():
    asking, answers = DialogQueue(), list[str]()
    files = (OutcomeFile(path="made", kind="created"),)

    async def on_answer(answer: str, _: str) -> None:
        answers.append(answer)

    async with Stage(asking).run_test(size=(80, 30)) as pilot:
        first = ApprovalPanel(approval("a1", "ls"), armed_after=0)
        await asking.add_panel(first, on_answer)
        await wait_until(pilot, lambda: first.has_focus)
        for name in ("a2", "a3"):
            view = approval(name, name, outcome=CommandOutcome(files=files))
            await asking.add_panel(ApprovalPanel(view, armed_after=0), on_answer)
        await pilot.press("Y")
        await pilot.pause()
        assert asking.shown is first  # an answer to the others must not remove it
        assert answers == []
        await pilot.press("n")
        await wait_until(pilot, lambda: asking.shown is not first and asking.shown is not None)
        shown = asking.shown
        assert isinstance(shown, ApprovalPanel)
        await wait_until(pilot, lambda: len(shown.joint) == 2 and shown.has_focus)
        shown.armed_after = 3600
        await asking.add_panel(ApprovalPanel(approval("a4", "a4", outcome=CommandOutcome(files=files))), on_answer)
        await pilot.press("Y")  # meant for two questions
        shown.armed_after = 0
        assert answers == ["no"]
        await pilot.press("Y")
        await wait_until(pilot, lambda: answers == ["no", panels.YES_TO_ALL])


async def test_several_answers_may_be_chosen_where_the_question_allows_it():
    asked = AskedQuestion("q", "s", "Which?", ("red", "blue", "green"), multiple=True)
    asking, panel = DialogQueue(), QuestionPanel(asked, armed_after=0)
    async with Stage(asking).run_test(size=(80, 30)) as pilot:
        waiting = pilot.app.run_worker(asking.ask_and_wait(panel))
        while pilot.app.focused is not panel:
            await pilot.pause(0.01)
        await pilot.press("1", "3", "1", "1", "enter")
        await waiting.wait()
    assert panel.collect_answers(*waiting.result) == ("green", "red")


@pytest.mark.parametrize(
    ("multiple", "keys", "answers"),
    [
        (False, ["enter", "down", "down", "enter"], ("option 2",)),
        (False, ["up", "enter"], ("option 12",)),  # no digit selects it
        (True, ["down", "space", "up", "space", "enter"], ("option 1", "option 12")),
    ],
)
async def test_options_are_selected_with_the_arrow_keys(multiple: bool, keys: list[str], answers: tuple[str, ...]):
    asked = AskedQuestion("q", "s", "Which?", tuple(f"option {n}" for n in range(1, 13)), multiple=multiple)
    asking, panel = DialogQueue(), QuestionPanel(asked, armed_after=0)
    async with Stage(asking).run_test(size=(40, 15)) as pilot:
        waiting = pilot.app.run_worker(asking.ask_and_wait(panel))
        while pilot.app.focused is not panel:
            await pilot.pause(0.01)
        await pilot.press(*keys[:-1])
        await pilot.pause()
        scroll = panel.query_one(VerticalScroll)
        assert scroll.scroll_y == (scroll.max_scroll_y if answers[-1] == "option 12" else 0)
        await pilot.press(keys[-1])
        await waiting.wait()
    assert panel.collect_answers(*waiting.result) == answers


async def test_a_list_is_filtered_by_what_is_typed():
    app = Stage()
    chosen: list[str | None] = []
    async with app.run_test(size=(80, 30)) as pilot:
        items = [PickerItem(f"m{n}", f"model {n}", "[bold]note[/]") for n in range(300)]
        await app.push_screen(PickerScreen("Model", items, "m3"), chosen.append)
        await pilot.pause()
        await pilot.press(*"el 299", "enter")
        await pilot.pause()
    assert chosen == ["m299"]


async def test_keys_that_come_at_once_do_not_take_what_was_offered_for_less():
    sent: list[str] = []

    class Field(Stage):
        def on_composer_submitted(self, event: Composer.Submitted) -> None:
            sent.append(event.text)

    completions = CompletionList()
    composer = Composer(completions, InputHistory(None, Path("/ws")), command_choices())
    async with Field(composer, completions).run_test(size=(60, 20)) as pilot:
        composer.focus()
        await pilot.press("slash", *"mode")
        await laid_out(pilot, lambda: completions.display)
        for key, character in (("l", "l"), ("enter", None)):
            composer.post_message(Key(key, character))
        await laid_out(pilot, lambda: bool(sent))
    assert sent == ["/model"]


async def press_at_once(app: App[None], *keys: str) -> None:
    """Keys that arrive in one piece, as over a slow connection."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


async def test_keys_that_come_at_once_are_handled_in_their_order():
    composer = Composer(CompletionList(), InputHistory(None, Path("/ws")), ())
    app, chosen = Stage(composer), list[str | None]()
    async with app.run_test(size=(60, 20)) as pilot:
        composer.focus()
        await press_at_once(app, "a", "c", "left", "b", "end", "d", "e", "backspace", "f")
        await wait_until(pilot, lambda: composer.text == "abcdf")
        await press_at_once(app, "ctrl+u", "x", "home", "y")
        await wait_until(pilot, lambda: composer.text == "yx")
        await app.push_screen(PickerScreen("Model", [PickerItem("ab", "ab"), PickerItem("ba", "ba")]), chosen.append)
        await pilot.pause()
        await press_at_once(app, "a", "left", "b", "enter")
        await wait_until(pilot, lambda: bool(chosen))
    assert chosen == ["ba"]


async def test_a_paste_of_many_lines_into_a_field_of_one_line_is_complete():
    field = TextField()
    async with Stage(field).run_test() as pilot:
        field.focus()
        await pilot.press(*"no: ")
        pilot.app.post_message(Paste("use\x1b[2J the\r  other\nfile\n"))
        await wait_until(pilot, lambda: field.value.startswith("no: use"))
    assert field.value.endswith("the other file")
    assert "\x1b" not in field.value


async def test_undo_returns_to_every_text_that_was_replaced_or_discarded():
    composer = Composer(CompletionList(), InputHistory(None, Path("/ws")), ())
    async with Stage(composer).run_test(size=(60, 20)) as pilot:
        composer.focus()
        await pilot.press(*"mine")
        composer.set_text("from the history")
        await pilot.press("ctrl+w", "ctrl+z", "x")
        assert composer.text == "from the historyx"
        composer.discard_text()
        assert composer.text == ""
        await pilot.press("ctrl+z")
        assert composer.text == "from the historyx"
        await pilot.press("ctrl+z", "ctrl+z")
        assert composer.text == "mine"
        assert composer.input_history.newest_first == ["from the historyx"]


async def test_the_sign_before_the_input_shows_normal_mode_of_vi_keys():
    composer, sign = Composer(CompletionList(), InputHistory(None, Path("/ws")), ()), Static("›", id="prompt")
    async with Stage(sign, composer).run_test(size=(60, 20)) as pilot:
        composer.focus()
        composer.use_vim_keys(on=True)
        await pilot.press("a", "escape")
        assert str(sign.content) == "N"
        composer.discard_text()
        assert str(sign.content) == "›"
        await pilot.press("b")
        assert composer.text == "b"


async def test_undo_brings_back_no_mark_of_a_paste_that_was_sent():
    composer = Composer(CompletionList(), InputHistory(None, Path("/ws")), ())
    async with Stage(composer).run_test(size=(60, 20)) as pilot:
        composer.focus()
        composer.insert_paste("row\n" * 50)
        assert composer.text == "[pasted #1: 51 lines]"
        await pilot.press("enter")
        await wait_until(pilot, lambda: not composer.text)
        await pilot.press("ctrl+z")
        assert composer.text == ""


async def test_the_body_of_a_dialog_has_no_empty_rows_at_its_end():
    async def on_answer(answer: str, text: str) -> None: ...

    asking, panel = DialogQueue(), ApprovalPanel(approval("a1", "ls"))
    async with Stage(asking).run_test(size=(80, 30)) as pilot:
        await asking.add_panel(panel, on_answer)
        await wait_until(pilot, lambda: bool(panel.query(VerticalScroll)) and panel.size.width == 74)
        await wait_until(pilot, lambda: panel.query_one(VerticalScroll).size.height == 1)


def test_an_agents_report_is_shown_as_markdown():
    done = ToolCompleted({"description": "look", "prompt": "look"}, "It is **fine**.", EndedTime(0, 1))
    assert "  It is fine." in plain(ToolCallItem(ToolPart("c", "task", done)))


def test_the_side_panel_states_the_state_of_everything_that_runs():
    activity = SideActivity(lambda: 0.0)
    activity.todos = (TodoItem("find it", "completed"), TodoItem("mend it", "in_progress"))
    activity.agents["s2"] = ChildAgent("c1", "reviewer", "look", "s2", 0.0, "asking", "shell")
    activity.agents["s3"] = ChildAgent(
        "c2", "writer", "a long prompt", "s3", 0.0, activity="npm test", task="Add tests"
    )
    activity.agents["s1"] = ChildAgent("", "old", "before", "s1", 0.0, "done", stored=True)
    activity.processes["p1"] = ChildProcess("p1", "npm start\x1b[2J", 0.0, in_background=True)
    text = "\n".join(line.plain for line in side_lines(activity, 30, DARK, 65.0))
    for expected in ("● find it", "◐ mend it", "? reviewer  asking 1m 05s", "npm start", "running 1m 05s"):
        assert expected in text
    assert "● writer  working 1m 05s\n  Add tests\n  npm test" in text
    assert "before" not in text
    assert "\x1b" not in text


async def test_leaving_a_session_answers_no_call_and_leaves_no_waiter_for_a_choice():
    answers: list[str] = []
    asking = DialogQueue()

    async def on_answer(answer: str, _: str) -> None:
        answers.append(answer)

    async with Stage(asking).run_test(size=(80, 30)) as pilot:
        await asking.add_panel(ApprovalPanel(approval("a1", "ls")), on_answer)
        choice = pilot.app.run_worker(
            asking.ask_and_wait(ChoicePanel("Sure?", "Really?", (panels.AnswerKey("y", "yes", "yes"),)))
        )
        await pilot.pause()
        await asking.leave_session()
        await choice.wait()
    assert answers == []
    assert choice.result == ("", "")


async def test_a_selection_is_visible_on_code_and_copied_without_margins():
    transcript = TranscriptWidget()
    answer = "Before.\n\n```python\nif x:\n    " + "y" * 70 + "()\n```\n\nAfter."
    async with Stage(transcript).run_test(size=(60, 20)) as pilot:
        transcript.display = True
        await pilot.pause()
        transcript.show_items([UserItem("u", "hello"), TextItem("t", "m", answer, streaming=False)])
        await pilot.pause()
        rows = shown(transcript)
        first, last = next(n for n, row in enumerate(rows) if "if x" in row), rows.index("  After.")
        selection = Selection(Offset(0, first), Offset(-1, last - 2))
        transcript.screen.selections = {transcript: selection}
        await pilot.pause()
        strip = transcript.render_line(first - transcript.scroll_offset.y)
        chosen = [segment for segment in strip if "if" in segment.text]
        assert {segment.style.bgcolor.name for segment in chosen} == {DARK.selection}
        assert transcript.get_selection(selection) == ("if x:\n    " + "y" * 70 + "()", "\n")
        whole = Selection(Offset(0, 2), Offset(-1, last))
        assert transcript.get_selection(whole) == (answer, "\n")


async def test_a_part_of_an_answer_and_of_an_input_is_copied_without_margins():
    transcript = TranscriptWidget()
    async with Stage(transcript).run_test(size=(60, 20)) as pilot:
        transcript.display = True
        await pilot.pause()
        transcript.show_items(
            [UserItem("u", "hello\nthere"), TextItem("t", "m", "One.\n\nTwo.\n\nThree.", streaming=False)]
        )
        await pilot.pause()
        rows = shown(transcript)
        part = Selection(Offset(4, 0), Offset(-1, rows.index("  Two.")))
        assert transcript.get_selection(part) == ("llo\nthere\n\nOne.\n\nTwo.", "\n")


async def test_a_double_click_selects_a_word_and_a_triple_click_a_line():
    output = "\n".join(f"日本 row {n} of /tmp/some-file.txt: done" for n in range(40))
    part = ToolPart(call_id="c", tool="shell", state=ToolCompleted({"command": "seq 40"}, output, EndedTime(0, 1)))
    transcript = TranscriptWidget()
    async with Stage(transcript).run_test(size=(60, 30)) as pilot:
        transcript.display = True
        await pilot.pause()
        transcript.show_items([UserItem("u", "hello there"), ToolCallItem(part)])
        await pilot.pause()
        y, before = next(n for n, row in enumerate(shown(transcript)) if "some-file" in row), shown(transcript)
        await pilot.click(TranscriptWidget, offset=(22, y), times=2)
        await pilot.pause()
        assert shown(transcript) == before  # nothing is expanded
        assert transcript.screen.get_selected_text() == "/tmp/some-file.txt:"
        await pilot.click(TranscriptWidget, offset=(22, y), times=3)
        await pilot.pause()
        selected = transcript.screen.get_selected_text()
        assert selected is not None
        assert selected == before[y].strip()


async def test_a_picker_shows_items_with_the_typed_phrase_first():
    items = [PickerItem(str(n), f"Paragraph {n}: text") for n in (117, 77, 7)]

    class Picking(Stage):
        def on_mount(self) -> None:
            self.push_screen(PickerScreen("Find", items))

    async with Picking().run_test(size=(80, 24)) as pilot:
        await pilot.press(*"paragraph 7:")
        await pilot.pause()
        options = pilot.app.screen.query_one(OptionList)
        assert [option.id for option in options.options] == ["7", "117", "77"]


async def test_the_cursor_and_backspace_treat_an_emoji_a_flag_and_an_accent_as_one_character():
    composer = Composer(CompletionList(), InputHistory(None, Path("/ws")), ())
    characters = ["a", "👨\u200d👩\u200d👧", "e\u0301", "🇩🇪", "🇫🇷", "❤\ufe0f", "👍🏽", "ی", "日"]
    async with Stage(composer).run_test(size=(60, 20)) as pilot:
        composer.focus()
        composer.set_text("".join(characters))
        for number in range(len(characters) - 1, -1, -1):
            await pilot.press("left")
            assert composer.cursor_location == (0, len("".join(characters[:number])))
        for number in range(1, len(characters) + 1):
            await pilot.press("right")
            assert composer.cursor_location == (0, len("".join(characters[:number])))
        await pilot.press("left", "left", "left", "delete")
        assert composer.text == "".join([*characters[:-3], *characters[-2:]])
        await pilot.press("backspace", "backspace", "backspace", "backspace", "backspace")
        assert composer.text == "".join(["a", *characters[-2:]])


def test_a_free_model_shows_no_cost_in_the_status_line():
    folder = Path("/w")

    def shown(cost: Decimal | None) -> str:
        status = StatusInfo(
            mode="agent",
            model="local/small",
            agent="outrider",
            context=9,
            cost=cost,
            answers=1,
            workspace=folder,
            home=folder,
        )
        return status_text(status, 100, DARK).plain

    assert "$0.5000" in shown(Decimal("0.5"))
    assert "9 tokens" in shown(Decimal(0))
    assert "$" not in shown(Decimal(0)) + shown(None)
