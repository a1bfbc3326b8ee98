"""Speaks the protocol on standard input and output until the client closes them; everything else goes to stderr."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

import acp
from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES

from outrider.acp.agent import EditorAgent
from outrider.acp.engines import SettingsOf


def serve_editor(settings_of: SettingsOf, version: str) -> None:
    """Settings are read for each folder that the client names."""
    _claim_streams()
    with suppress(asyncio.CancelledError):  # a signal: what was said is kept
        asyncio.run(_serve(settings_of, version))


async def _serve(settings_of: SettingsOf, version: str) -> None:
    reader, writer = await acp.stdio_streams(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
    sys.stdin, sys.stdout = sys.__stdin__, sys.stderr
    loop, work = asyncio.get_running_loop(), asyncio.current_task()
    assert work is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, work.cancel)
    async with asyncio.TaskGroup() as tasks:
        agent = EditorAgent(settings_of, version, tasks)
        try:
            # Closing and resuming sessions are stable in the protocol, and not yet in the SDK.
            await acp.run_agent(agent, writer, reader, use_unstable_protocol=True)  # type: ignore[arg-type]  an agent need not offer all
        finally:
            agent.close()


def _claim_streams() -> None:
    """Nobody else may write a word to stdout, nor read one from stdin: not a library, not a program that is started.
    What the SDK finds as stdin and stdout are copies that belong to the protocol alone."""
    heard, said = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = heard, said
