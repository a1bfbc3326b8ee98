"""The supervisor runs real commands, moves them to the background and back, and always knows what is alive."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.errors import ProcessError
from outrider.event_bus import EventBus
from outrider.processes.launch import LaunchRequest, ResourceLimits
from outrider.processes.supervisor import ProcessLimits, ProcessSupervisor
from outrider.types.events import Event, ProcessExitedEvent, ProcessOutputEvent, ProcessStartedEvent
from tests.fixtures.leaks import child_processes
from tests.fixtures.process_checks import is_alive, number_in, until_there, wait_until_dead


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[ProcessSupervisor]:
    async with ProcessSupervisor(folder=tmp_path / "outputs") as supervisor:
        yield supervisor


async def until_written(supervisor: ProcessSupervisor, call_id: str, size: int = 1) -> None:
    async with asyncio.timeout(30):
        while supervisor.status(call_id).output_size < size:
            await asyncio.sleep(0.01)


async def test_a_command_gives_its_output_and_its_exit_code(supervisor: ProcessSupervisor):
    done = await supervisor.run_command("c", "echo out; echo err >&2; exit 3")
    assert (done.text, done.exit_code, done.process_id) == ("out\nerr\n", 3, "c")
    assert done.ending is not None
    assert done.ending.description == "exit code 3"


async def test_output_arrives_while_the_command_runs(supervisor: ProcessSupervisor, tmp_path: Path):
    received: list[str] = []

    def receive(text: str) -> None:
        received.append(text)
        (tmp_path / text).touch()

    one, two = until_there(tmp_path / "one"), until_there(tmp_path / "€")
    done = await supervisor.run_command(
        "c", f"printf one; {one}; printf '\\xe2'; sleep 0.1; printf '\\x82\\xac'; {two}", receive, limit=60
    )
    assert (received, done.exit_code) == (["one", "€"], 0)


async def test_a_listener_that_fails_does_not_hurt_the_command(supervisor: ProcessSupervisor):
    done = await supervisor.run_command("c", "echo a; sleep 0.05; echo b", lambda text: 1 / 0)
    assert (done.text, done.exit_code) == ("a\nb\n", 0)


async def test_a_program_is_run_without_a_shell_when_given_as_a_sequence(supervisor: ProcessSupervisor):
    done = await supervisor.run_command("c", ["printf", "%s", "$HOME; `id`"])
    assert done.text == "$HOME; `id`"


async def test_a_command_runs_in_its_folder_with_nothing_but_its_environment(tmp_path: Path):
    async with ProcessSupervisor(environment={"PATH": os.environ["PATH"], "SEEN": "yes"}) as supervisor:
        done = await supervisor.run_command("c", "pwd; echo $SEEN; env | grep -c .", workdir=tmp_path)
    folder, seen, count = done.text.split()
    assert (Path(folder), seen) == (tmp_path.resolve(), "yes")
    assert int(count) <= 5  # the shell adds PWD, OLDPWD, SHLVL and _


async def test_no_start_up_file_of_the_user_is_read(tmp_path: Path):
    for name in (".bashrc", ".bash_profile", ".profile", ".bash_env"):
        (tmp_path / name).write_text("echo EVIL\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    async with ProcessSupervisor(environment=environment) as supervisor:
        assert (await supervisor.run_command("c", "echo fine")).text == "fine\n"


async def test_the_environment_of_the_guards_holds_no_keys(
    supervisor: ProcessSupervisor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET_KEY", "do-not-leak")
    command = (
        "p=$$; while [ $p != 1 ] && [ $p != %d ]; do tr '\\0' '\\n' </proc/$p/environ; p=$(ps -o ppid= -p $p); done"
    )
    done = await supervisor.run_command("c", command % os.getpid())
    assert "PATH=" in done.text
    assert "do-not-leak" not in done.text


async def test_no_descriptor_of_the_engine_reaches_a_command(tmp_path: Path):
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        async with ProcessSupervisor() as supervisor:
            done = await supervisor.run_command("c", ["ls", "/dev/fd/"])
    assert done.text.split() == ["0", "1", "2", "3"]  # the last is that of ls itself


async def test_a_command_that_waits_for_input_finds_none(supervisor: ProcessSupervisor):
    done = await supervisor.run_command("c", "cat; test -t 0 || echo no terminal; (exec </dev/tty) 2>&1 || echo none")
    assert done.text.startswith("no terminal\n")
    assert done.text.endswith("none\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program-anywhere"], "program: No such file"),
        (["/"], "program: "),
        (["x" * 200_000], "program: "),
        ("echo " + "x" * 3_000_000, "program: Argument list too long"),
        ("echo \0", "NUL"),
    ],
)
async def test_a_failed_start_reports_why(supervisor: ProcessSupervisor, command: str | list[str], message: str):
    with pytest.raises(ProcessError, match=message):
        await supervisor.run_command("c", command)
    assert supervisor.get_running_ids() == []
    assert (await supervisor.run_command("c", "echo still works")).text == "still works\n"


async def test_a_folder_that_is_not_there_is_named_as_the_reason(supervisor: ProcessSupervisor, tmp_path: Path):
    with pytest.raises(ProcessError, match="workdir: No such file"):
        await supervisor.run_command("c", "true", workdir=tmp_path / "nowhere")


async def test_every_launch_goes_through_the_wrapping(tmp_path: Path):
    def wrap(launch: LaunchRequest) -> LaunchRequest:
        return LaunchRequest(("env", "WRAPPED=1", *launch.argv), launch.environment, launch.workdir, launch.limits)

    async with ProcessSupervisor(wrap=wrap) as supervisor:
        assert (await supervisor.run_command("c", "echo $WRAPPED")).text == "1\n"


async def test_limits_of_the_system_reach_the_command():
    async with ProcessSupervisor(resources=ResourceLimits(file_size=1024, open_files=33)) as supervisor:
        done = await supervisor.run_command("c", "ulimit -n; head -c 5000 /dev/zero > $(mktemp)")
    assert done.text.startswith("33\n")
    assert done.exit_code != 0


@pytest.mark.slow
async def test_a_command_that_may_open_next_to_nothing_can_still_be_killed():
    async with ProcessSupervisor(resources=ResourceLimits(open_files=4, memory=1 << 30)) as supervisor:
        done = await supervisor.run_command("c", "echo $$; sleep 60 & sleep 60", limit=2)
    assert done.ending is not None
    assert done.ending.cause == "timeout"
    assert not is_alive(int(done.text))


@pytest.mark.slow
async def test_a_command_over_its_time_limit_is_killed_and_its_output_preserved(supervisor: ProcessSupervisor):
    done = await asyncio.wait_for(supervisor.run_command("c", "echo begun; sleep 60", limit=2), 30)
    assert done.text == "begun\n"
    assert done.ending is not None
    assert done.ending.cause == "timeout"


async def test_cancelling_the_caller_kills_the_command_and_waits_for_nothing(
    supervisor: ProcessSupervisor, tmp_path: Path
):
    task = asyncio.create_task(supervisor.run_command("c", f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 60"))
    pid = await asyncio.to_thread(number_in, tmp_path / "pid")
    task.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert is_alive(pid), "it ignores the first signal, and gets the second one later"
    await supervisor.kill_process("c", grace=0)
    await asyncio.to_thread(wait_until_dead, pid)


async def test_a_running_command_moves_to_the_background_and_continues(supervisor: ProcessSupervisor, tmp_path: Path):
    release_file = tmp_path / "go on"
    task = asyncio.create_task(supervisor.run_command("c", f"echo one; {until_there(release_file)}; echo two"))
    await asyncio.sleep(0)
    await until_written(supervisor, "c")
    assert supervisor.get_running_ids() == ["c"]
    assert (supervisor.is_backgrounded("c"), supervisor.get_backgrounded_ids()) == (False, [])
    assert supervisor.mark_as_backgrounded("c")
    so_far = await task
    assert (so_far.text, so_far.ending) == ("one\n", None)
    assert (supervisor.is_backgrounded("c"), supervisor.get_backgrounded_ids()) == (True, ["c"])
    release_file.touch()
    done = await supervisor.wait("c", 30)
    assert (done.text, done.exit_code) == ("one\ntwo\n", 0)
    async with asyncio.timeout(30):  # on a busy machine its guard needs longer to end than `wait` waits for it
        while supervisor.get_running_ids():
            await asyncio.sleep(0.01)
    assert supervisor.is_backgrounded("c")


async def test_a_command_comes_back_to_the_foreground(supervisor: ProcessSupervisor, tmp_path: Path):
    received: list[str] = []
    await supervisor.start_command("c", f"echo one; {until_there(tmp_path / 'go on')}; echo two")
    await until_written(supervisor, "c")
    task = asyncio.create_task(supervisor.bring_to_foreground("c", received.append))
    await asyncio.sleep(0)
    (tmp_path / "go on").touch()
    done = await task
    assert (done.text, done.exit_code, received) == ("one\ntwo\n", 0, ["two\n"])
    assert not supervisor.is_backgrounded("c")


async def test_only_what_runs_can_be_moved_to_the_background(supervisor: ProcessSupervisor):
    await supervisor.run_command("c", "true")
    assert not supervisor.mark_as_backgrounded("c")
    assert not supervisor.mark_as_backgrounded("never seen")


async def test_output_is_read_in_pieces_from_where_one_left_off(supervisor: ProcessSupervisor, tmp_path: Path):
    await supervisor.start_command("c", f"printf abc; {until_there(tmp_path / 'go on')}; printf def")
    await until_written(supervisor, "c", 3)
    assert supervisor.read("c").text == "abc"
    assert supervisor.read("c").text == ""
    (tmp_path / "go on").touch()
    await supervisor.wait("c")
    assert supervisor.read("c").text == "def"
    assert supervisor.read("c", offset=1).text == "bcdef"


async def test_a_process_in_the_background_can_be_given_input(supervisor: ProcessSupervisor):
    await supervisor.start_command("c", "read line; echo got $line; cat")
    await supervisor.write("c", "first\n")
    await supervisor.write("c", "second\n", last=True)
    done = await supervisor.wait("c", 30)
    assert (done.text, done.exit_code) == ("got first\nsecond\n", 0)
    with pytest.raises(ProcessError):
        await supervisor.write("c", "too late")


async def test_unread_input_does_not_hang(supervisor: ProcessSupervisor):
    await supervisor.start_command("c", "sleep 60")
    with pytest.raises(ProcessError, match="did not read its input"):
        await supervisor.write("c", "x" * 1_000_000, limit=0.2)
    writing = asyncio.create_task(supervisor.write("c", "y" * 1_000_000))
    await asyncio.sleep(0.05)
    await supervisor.kill_process("c")
    with pytest.raises(ProcessError):
        await writing


async def test_a_foreground_command_takes_no_input(supervisor: ProcessSupervisor):
    task = asyncio.create_task(supervisor.run_command("c", "echo; sleep 60"))
    await asyncio.sleep(0)
    await until_written(supervisor, "c")
    with pytest.raises(ProcessError, match="takes no input"):
        await supervisor.write("c", "hello")
    await supervisor.kill_process("c")
    await task


async def test_waiting_has_a_limit(supervisor: ProcessSupervisor):
    await supervisor.start_command("c", "echo a; sleep 60")
    await until_written(supervisor, "c")
    so_far = await supervisor.wait("c", 0.2)
    assert (so_far.text, so_far.ending) == ("a\n", None)


async def test_killing_ends_a_process_and_states_so(supervisor: ProcessSupervisor):
    task = asyncio.create_task(supervisor.run_command("c", "echo; sleep 60"))
    await asyncio.sleep(0)
    await until_written(supervisor, "c")
    assert await supervisor.kill_process("c")
    done = await task
    assert done.ending is not None
    assert done.ending.description == "killed"
    assert not await supervisor.kill_process("c")
    assert not await supervisor.kill_process("never seen")


async def test_an_unknown_process_is_named_in_the_error(supervisor: ProcessSupervisor):
    await supervisor.start_command("known", "sleep 60")
    with pytest.raises(ProcessError, match=r"no process 'other'.*known"):
        supervisor.read("other")


async def test_calls_of_one_id_do_not_disturb_each_other(supervisor: ProcessSupervisor):
    first, second = await asyncio.gather(
        supervisor.run_command("call_0", "sleep 0.1; echo first"), supervisor.run_command("call_0", "echo second")
    )
    assert (first.text, second.text) == ("first\n", "second\n")
    assert first.process_id != second.process_id


async def test_processes_are_listed_by_session(supervisor: ProcessSupervisor):
    await supervisor.start_command("a", "sleep 60", session_id="one")
    await supervisor.start_command("b", "true", session_id="two")
    await supervisor.wait("b")
    assert [status.id for status in supervisor.list_processes()] == ["a", "b"]
    assert [status.id for status in supervisor.list_processes("two")] == ["b"]
    ended = supervisor.status("b")
    assert (ended.command, ended.backgrounded) == ("true", True)
    assert ended.ending is not None


async def test_there_is_a_limit_to_the_background():
    async with ProcessSupervisor(limits=ProcessLimits(background=1, remembered=2)) as supervisor:
        await supervisor.start_command("a", "sleep 60")
        with pytest.raises(ProcessError, match="in the background already"):
            await supervisor.start_command("b", "sleep 60")
        await supervisor.kill_process("a")
        for number in range(5):
            await supervisor.start_command(f"n{number}", "true")
            await supervisor.wait(f"n{number}")
            await supervisor.kill_process(f"n{number}")
        assert [status.id for status in supervisor.list_processes()] == ["n2", "n3", "n4"]


async def test_more_foreground_commands_than_may_run_at_once_wait_their_turn():
    async with ProcessSupervisor(limits=ProcessLimits(foreground=2)) as supervisor:
        most = 0

        def count(_: str) -> None:
            nonlocal most
            most = max(most, len(supervisor.get_running_ids()))

        await asyncio.gather(*(supervisor.run_command(f"c{n}", "echo x; sleep 0.05", count) for n in range(6)))
        assert most == 2


async def test_start_output_and_end_are_published():
    bus, received = EventBus(), list[Event]()
    bus.subscribe_all(received.append)
    async with ProcessSupervisor(bus=bus) as supervisor:
        await supervisor.run_command("c", "echo hi; exit 2", session_id="s")
    started, *output, exited = received
    assert isinstance(started, ProcessStartedEvent)
    assert isinstance(exited, ProcessExitedEvent)
    assert (started.command, started.session_id, started.call_id) == ("echo hi; exit 2", "s", "c")
    assert "".join(event.output for event in output if isinstance(event, ProcessOutputEvent)) == "hi\n"
    assert (exited.exit_code, exited.process_id) == (2, "c")


async def test_a_flood_becomes_few_events():
    bus, received = EventBus(), list[ProcessOutputEvent]()
    bus.subscribe(ProcessOutputEvent, received.append)
    async with ProcessSupervisor(bus=bus) as supervisor:
        await supervisor.run_command("c", "head -c 20000000 /dev/zero | tr '\\0' x")
    assert 0 < len(received) < 100
    assert sum(len(event.output) for event in received) < 1_000_000
    assert len(received) == 1 or any("characters not shown" in event.output for event in received)


async def test_closing_ends_everything_quickly_even_what_ignores_it(tmp_path: Path):
    supervisor = ProcessSupervisor()
    for number in range(3):
        await supervisor.start_command(f"c{number}", f"trap '' TERM; echo $$ > {tmp_path}/{number}; sleep 60; sleep 60")
    pids = [await asyncio.to_thread(number_in, tmp_path / str(number)) for number in range(3)]
    await asyncio.wait_for(supervisor.close(), 30)
    assert not any(map(is_alive, pids))
    with pytest.raises(ProcessError, match="closed"):
        await supervisor.run_command("c", "true")
    await supervisor.close()


async def test_a_command_that_is_being_started_when_the_supervisor_closes_ends_too(tmp_path: Path):
    supervisor = ProcessSupervisor()
    task = asyncio.create_task(supervisor.run_command("c", f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 60"))
    await asyncio.sleep(0)
    await asyncio.wait_for(supervisor.close(), 30)
    with contextlib.suppress(ProcessError):
        outcome = await task
        assert outcome.ending is not None
        assert outcome.ending.cause == "killed"
    assert not (tmp_path / "pid").exists() or not is_alive(number_in(tmp_path / "pid"))


@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
async def test_nothing_is_started_before_the_first_command():
    before = child_processes()
    async with ProcessSupervisor() as supervisor:
        assert child_processes() == before
        await supervisor.run_command("c", "true")
        assert child_processes() != before


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def test_descriptors_do_not_leak(supervisor: ProcessSupervisor):
    await supervisor.run_command("c", "true")
    before = open_descriptors()
    for _ in range(20):
        await supervisor.run_command("c", "true")
        with pytest.raises(ProcessError):
            await supervisor.run_command("c", ["no-such-program"])
    assert open_descriptors() == before
