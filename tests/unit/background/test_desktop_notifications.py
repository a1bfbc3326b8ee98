"""Desktop notifications are shown if there is a desktop, and the text of a prompt is escaped in them."""

from pathlib import Path

from outrider.cli.commands.jobs_follow import notification_command


def test_a_desktop_gets_a_notice_and_a_server_none(tmp_path: Path):
    for name in ("notify-send", "osascript"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    place = {"PATH": str(tmp_path)}
    assert notification_command("done", place, "linux") == ()
    shown = notification_command("done: <b>--help", place | {"DISPLAY": ":0"}, "linux")
    assert shown[-3:] == ("--", "Outrider", "done: &lt;b&gt;--help")
    assert notification_command('done "x"', place, "darwin")[-1] == 'done "x"'
    assert notification_command("done", {"PATH": "", "DISPLAY": ":0"}, "linux") == ()
