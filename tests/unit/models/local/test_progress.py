"""The progress of a download: size, speed and remaining time."""

import io

from outrider.models.local_download import DownloadProgress, ProgressLine, ProgressMeter, progress_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_speed_and_time_left_come_from_the_last_seconds():
    reports: list[DownloadProgress] = []
    times = iter(range(100))
    meter = ProgressMeter("tiny", 1000, reports.append, lambda: float(next(times)))
    meter.start_source("somewhere")
    for done in (0, 100, 200, 300):
        meter.report_bytes(done)
    assert (reports[-1].speed, reports[-1].seconds_left, reports[-1].source) == (100.0, 7.0, "somewhere")


def test_reports_come_no_more_often_than_eyes_can_follow():
    reports: list[DownloadProgress] = []
    times = iter(number / 1000 for number in range(1000, 3000))
    meter = ProgressMeter("tiny", 2000, reports.append, lambda: next(times))
    for done in range(1000):
        meter.report_bytes(done)
    assert len(reports) < 15


def test_a_line_states_size_speed_and_time_left():
    line = progress_text(DownloadProgress("1.5b", "the publisher", "fetching", 300_000_000, 1_200_000_000, 5e6, 180.0))
    assert line == "1.5b:  25 %  300.0 MB of 1.2 GB  5.0 MB/s  3m 00s left  from the publisher"


def test_a_terminal_gets_one_line_that_changes():
    screen = Terminal()
    line = ProgressLine(screen)
    for done in (10, 50, 100):
        line(DownloadProgress("tiny", "x", "fetching", done, 100))
    line(DownloadProgress("tiny", "x", "done", 100, 100))
    assert screen.getvalue().count("\r") == 4
    assert screen.getvalue().count("\n") == 1


def test_a_bar_grows_and_fits_into_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    screen = Terminal()
    line = ProgressLine(screen)
    for done in (0, 50, 100):
        line(DownloadProgress("tiny", "a source with a very long name indeed", "fetching", done, 100))
    lines = screen.getvalue().split("\r")[1:]
    assert [shown[:22].count("#") for shown in lines] == [0, 10, 20]
    assert max(map(len, lines)) < 60


def test_without_a_terminal_a_line_is_written_now_and_then():
    written = io.StringIO()
    line = ProgressLine(written)
    for done in range(100):
        line(DownloadProgress("tiny", "x", "fetching", done, 100))
    assert 15 <= written.getvalue().count("\n") <= 25
