"""The mock model server of the shared folder, in a separate process."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PEERBENCH = Path(os.environ.get("OUTRIDER_SHARED") or Path(__file__).parents[2] / "shared") / "peerbench"


@contextmanager
def mock_server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mockllm.server", "--port", str(port)]
    server = subprocess.Popen(command, cwd=PEERBENCH, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("the mock server did not start")
