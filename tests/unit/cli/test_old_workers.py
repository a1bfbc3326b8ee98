"""A run with rules that a living worker of version 0.1 would apply in part is not submitted."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, cast

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from msgspec.structs import replace

from outrider.background.heartbeat import WorkerInfo
from outrider.background.jobs import JobClient
from outrider.cli.commands.jobs_common import reject_old_worker
from outrider.errors import ConfigurationError
from outrider.sessions.leases import current_process

OLD = WorkerInfo(id="old", owner=current_process())
DEAD = replace(OLD, owner=replace(OLD.owner, pid=2**30))


class Workers:
    """Returns one list of workers after the other, the last one again and again."""

    def __init__(self, *lists: list[WorkerInfo]) -> None:
        self._lists = list(lists)

    async def list_workers(self) -> Sequence[WorkerInfo]:
        return self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]


async def check(*lists: list[WorkerInfo], **given: Any) -> None:
    usual: dict[str, Any] = {"attach": None, "allow": [], "ask": [], "deny": [], "approval": None, "effort": None}
    seconds = 0 if len(lists) == 1 else 20
    await reject_old_worker(cast("JobClient", Workers(*lists)), Namespace(**{**usual, **given}), start_seconds=seconds)


@pytest.mark.parametrize(
    "given", [{"deny": ["shell(rm *)"]}, {"ask": ["web_fetch"]}, {"allow": ["shell", "may write docs"]}], ids=str
)
async def test_weaker_rules_are_refused_with_the_remedy(given: Any):
    with pytest.raises(
        ConfigurationError, match=r"version 0\.1 is registered .*nothing was submitted.*worker --restart"
    ):
        await check([OLD], **given)


async def test_ignored_arguments_are_a_warning(capsys: pytest.CaptureFixture[str]):
    await check([OLD], approval="edits", effort="high", allow=["shell"])
    shown = " ".join(capsys.readouterr().err.split())
    assert "ignores --approval, --effort" in shown
    assert "outrider worker --restart" in shown


async def test_other_runs_and_other_workers_are_not_mentioned(capsys: pytest.CaptureFixture[str]):
    await check([OLD], allow=["shell"])
    await check([OLD], deny=["shell"], attach="http://localhost")
    await check([DEAD], deny=["shell"])
    await check([replace(OLD, age=0.5)], deny=["shell"])
    await check([], deny=["shell"])
    assert not capsys.readouterr().err


async def test_a_worker_that_has_just_started_is_not_old(capsys: pytest.CaptureFixture[str]):
    await check([OLD], [OLD], [replace(OLD, age=0.1)], deny=["shell"])
    assert not capsys.readouterr().err
