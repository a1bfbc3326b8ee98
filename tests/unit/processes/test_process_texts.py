"""Exit texts, decoded output, and an environment without keys."""

import signal
from pathlib import Path
from time import process_time

import pytest

from outrider.errors import ProcessError
from outrider.processes.launch import (
    LaunchRequest,
    ResourceLimits,
    build_argv,
    child_environment,
    exit_status_of,
    find_bash,
)
from outrider.processes.output import plain_text
from tests.fixtures.cases import for_each


@for_each(
    ("code", "out_of_memory", "because", "expected"),
    [
        (0, False, None, "exit code 0"),
        (2, False, None, "exit code 2"),
        (-signal.SIGSEGV, False, None, "killed by SIGSEGV"),
        (139, False, None, "exit code 139 (SIGSEGV)"),
        (-signal.SIGKILL, True, None, "killed (memory)"),
        (137, True, None, "killed (memory)"),
        (-signal.SIGKILL, False, None, "killed by SIGKILL"),
        (-signal.SIGKILL, True, "killed", "killed"),
        (-signal.SIGTERM, False, "timeout", "killed after its time limit"),
        (-60, False, None, "killed by signal 60"),
        (255, False, None, "exit code 255"),
    ],
)
def test_the_end_of_a_process_is_described(code: int, out_of_memory: bool, because: str, expected: str):
    assert exit_status_of(code, out_of_memory=out_of_memory, requested=because).description == expected  # pyright: ignore


def test_only_exit_code_0_is_a_success():
    assert exit_status_of(0, out_of_memory=False, requested=None).succeeded
    assert not exit_status_of(0, out_of_memory=False, requested="timeout").succeeded
    assert not exit_status_of(1, out_of_memory=False, requested=None).succeeded


def test_keys_and_what_steers_shells_stay_out_of_the_environment():
    source = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "XDG_CACHE_HOME": "/cache",
        "ANTHROPIC_API_KEY": "sk-secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "MY_OWN_TOKEN": "secret",
        "SSH_AUTH_SOCK": "/agent",
        "BASH_ENV": "/evil",
        "ENV": "/evil",
        "PROMPT_COMMAND": "evil",
        "LD_PRELOAD": "/evil.so",
        "HTTPS_PROXY": "http://user:secret@proxy:3128",
        "HTTP_PROXY": "http://proxy:3128",
    }
    environment = child_environment(source)
    assert "secret" not in str(environment)
    assert "evil" not in str(environment)
    assert "SSH_AUTH_SOCK" not in environment
    assert {"PATH", "LC_ALL", "XDG_CACHE_HOME", "HTTP_PROXY"} <= environment.keys()
    assert (environment["TERM"], environment["GIT_TERMINAL_PROMPT"]) == ("dumb", "0")


def test_what_the_user_adds_to_the_environment_is_passed_on():
    assert child_environment({"PATH": "/bin"}, {"MY_OWN_TOKEN": "wanted", "TERM": "xterm"})["MY_OWN_TOKEN"] == "wanted"


@for_each(
    ("written", "seen"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("10%\r50%\r100%\ndone\n", "100%\ndone\n"),
        ("working...\r\n", "working...\n"),
        ("bar\r   \r", "bar"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "red text link"),
        ("\x1b[2K\x1b[1Gagain", "again"),
        ("N\x08NA\x08A", "NA"),
        ("a\0b\x07c\x7f", "a␀b␇c␡"),
        ("\x1b", "␛"),
        ("한국어 \U0001f600", "한국어 \U0001f600"),
    ],
)
def test_plain_text_is_what_a_person_would_have_seen(written: str, seen: str):
    assert plain_text(written) == seen


def test_plain_text_takes_time_in_proportion_to_its_length():
    def cpu_seconds(text: str) -> float:
        started = process_time()
        plain_text(text)
        return process_time() - started

    for start, repeated in (("", "\x1b["), ("\x1b[", "1;"), ("", "\x1b]"), ("", "a\x08"), ("", "\r")):
        short, long = (min(cpu_seconds(start + repeated * count) for _ in range(3)) for count in (25_000, 400_000))
        assert long < 80 * short + 0.02, repr(repeated)  # in proportion it is 16 times as long, squared 256 times


def test_a_shell_command_reads_no_files_of_the_user():
    argv = build_argv("echo hi")
    assert argv[-2:] == ("-c", "echo hi")
    assert (Path(argv[0]).name, argv[1:3]) == ("bash", ("--noprofile", "--norc"))
    assert build_argv(["git", "status"]) == ("git", "status")


def test_without_bash_no_other_shell_reads_what_was_judged_as_bash(tmp_path: Path):
    with pytest.raises(ProcessError, match="bash is not installed"):
        find_bash(candidates=(), search_path=str(tmp_path))


def test_a_bash_in_the_search_path_is_used_only_by_its_full_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bash").write_text("#!/bin/sh\n")
    (tmp_path / "bash").chmod(0o755)
    assert find_bash(candidates=(), search_path=str(tmp_path)) == str(tmp_path / "bash")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProcessError, match="bash is not installed"):
        find_bash(candidates=(), search_path=".")


def test_the_systems_own_bash_comes_first(tmp_path: Path):
    (tmp_path / "bash").write_text("#!/bin/sh\n")
    (tmp_path / "bash").chmod(0o755)
    assert find_bash(search_path=str(tmp_path)) != str(tmp_path / "bash")


@pytest.mark.parametrize("argv", [("a\0b",), ("ok", "\ud83d")])
def test_a_command_that_no_system_could_start_is_refused(argv: tuple[str, ...]):
    with pytest.raises(ProcessError, match="cannot be started"):
        LaunchRequest(argv, {}, Path("/")).encode()


def test_limits_that_are_not_set_are_not_sent():
    assert ResourceLimits(cpu_seconds=5).by_name() == [("RLIMIT_CPU", 5)]


def test_programs_are_not_looked_for_in_the_working_directory_nor_in_a_folder_that_is_named(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "bin")
    source = {"PATH": f".::bin:/usr/bin:{tmp_path}/bin:{tmp_path}/alias", "PYTHONPATH": f"src:{tmp_path}"}
    environment = child_environment(source)
    assert (environment["PATH"], environment["PYTHONPATH"]) == (
        f"/usr/bin:{tmp_path}/bin:{tmp_path}/alias",
        str(tmp_path),
    )
    environment = child_environment(source, exclude=tmp_path)
    assert (environment["PATH"], environment["PYTHONPATH"]) == ("/usr/bin", "")


def test_settings_are_not_looked_for_in_the_working_directory_either(tmp_path: Path):
    source = {"XDG_CONFIG_HOME": ".", "XDG_CONFIG_DIRS": "etc:/etc/xdg", "CARGO_HOME": "/c", "XDG_SESSION_TYPE": "x11"}
    source |= {"VIRTUAL_ENV": str(tmp_path / ".venv"), "HOME": str(tmp_path), "GOPATH": "go:/go"}
    environment = child_environment(source)
    assert "XDG_CONFIG_HOME" not in environment
    assert (environment["XDG_CONFIG_DIRS"], environment["CARGO_HOME"], environment["GOPATH"]) == (
        "/etc/xdg",
        "/c",
        "/go",
    )
    assert (environment["XDG_SESSION_TYPE"], environment["VIRTUAL_ENV"]) == ("x11", str(tmp_path / ".venv"))
    environment = child_environment(source, exclude=tmp_path)
    assert "VIRTUAL_ENV" not in environment
    assert environment["HOME"] == str(tmp_path)
