"""Other agent libraries, each in a separate environment outside this repository, measured with the same jobs.

python -m benchmarks.peers      installs them into $OUTRIDER_PEERS, or ~/.cache/outrider-peers
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.mock_server import PEERBENCH

FOLDER = Path(os.environ.get("OUTRIDER_PEERS") or Path.home() / ".cache" / "outrider-peers")
OURS = "outrider"
REQUIREMENTS = {
    "agno": ["agno", "openai", "sqlalchemy", "greenlet", "aiosqlite"],
    "langgraph": ["langchain", "langgraph", "langchain-openai", "langgraph-checkpoint-sqlite"],
    "openai-agents": ["openai-agents"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "agentouto": ["agentouto"],
    "raw-aiohttp": ["aiohttp"],
}
# The telemetry of the peers is off, and keys and proxies of the user are not passed to them.
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", ""),
    "HOME": "/tmp",
    "PYTHONHASHSEED": "0",
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "AGNO_TELEMETRY": "false",
}


def installed() -> list[str]:
    return [name for name in REQUIREMENTS if _python(name).exists()]


def run_job(who: str, job: str, server: str, seconds: int = 900, **params: Any) -> dict[str, Any] | None:
    """Returns what one worker measured; None if it failed, which is printed."""
    if who == OURS:
        command = [sys.executable, "-m", "benchmarks.loop_worker", job, server, json.dumps(params)]
    else:
        command = [str(_python(who)), str(PEERBENCH / "worker.py"), who, job, server, json.dumps(params)]
    root = Path(__file__).parents[1]
    ours = {"PYTHONPATH": str(root / "src"), "OUTRIDER_SHARED": str(PEERBENCH.parent)}
    environment = ENVIRONMENT | (ours if who == OURS else {})
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment, cwd=root, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{who}, {job}: more than {seconds} s", file=sys.stderr)
        return None
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    print(f"{who}, {job}: {done.stderr[-600:]}", file=sys.stderr)
    return None


def _python(name: str) -> Path:
    return FOLDER / name / "bin" / "python"


def install() -> None:
    for name, requirements in REQUIREMENTS.items():
        if not _python(name).exists():
            subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True)
        pip = [str(_python(name)), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, *requirements], check=True)
        print(f"{name}: installed")


if __name__ == "__main__":
    install()
