"""CPU time of redaction: streamed chunks and stored texts of several kinds, without and with secrets.

With a checkout of another version in `OUTRIDER_BASE` (such as 0.1), each figure has the ratio to that version.
"""

import importlib
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure

ROUNDS = 60
PROSE = (
    "the agent reads a file and then it writes the result of the test to the log because a user asked for an answer "
    "which explains how the function works; however, nothing was changed (see README.md), so we start again. "
)
SOURCE = Path(__file__).parent.parent / "src/outrider/permissions/policy.py"
Redact = Callable[[list[str]], None]


def bench() -> list[Figure]:
    base = os.environ.get("OUTRIDER_BASE")
    ours = load_version(None)
    peer = load_version(Path(base) / "src") if base else None
    return [measure(name, texts, ours, peer) for name, texts in sample_texts().items()]


def sample_texts() -> dict[str, list[str]]:
    """Texts by kind. The secrets are built at run time, so that this file contains no key."""
    chance = random.Random(7)
    prose = " ".join(chance.choices(PROSE.split(), k=4_000))[:20_000]
    code = (SOURCE.read_text() * 4)[:20_000]
    log = "".join(log_line(chance) for _ in range(400))[:20_000]
    records = [{"id": f"{chance.getrandbits(128):032x}", "name": prose[n : n + 60], "n": n} for n in range(1_600)]
    key = f"ghp_{chance.getrandbits(160):040x}"
    secrets = "\n".join(f"{prose[n * 50 : n * 50 + 300]} API_KEY={key} password = 'hunter2 {n}x1'" for n in range(20))
    return {
        "streamed chunks of prose": split_chunks(prose[:4_000]),
        "streamed chunks of code": split_chunks(code[:4_000]),
        "20 KB of prose": [prose],
        "20 KB of code": [code],
        "20 KB of log with ids": [log],
        "200 KB of JSON": [json.dumps(records)[:200_000]],
        "8 KB with secrets": [secrets],
    }


def log_line(chance: random.Random) -> str:
    request = uuid.UUID(int=chance.getrandbits(128))
    return (
        f"2026-11-{chance.randint(1, 28):02d}T10:{chance.randint(10, 59)}:07.{chance.randint(0, 999):03d}Z INFO "
        f"[worker-{chance.randint(1, 9)}] request {request} commit {chance.getrandbits(160):040x} took "
        f"{chance.randint(1, 900)}ms path=/v1/items/{chance.getrandbits(64):016x} status=200\n"
    )


def split_chunks(text: str) -> list[str]:
    """The buffers that the event filter checks while a text is streamed: 64 characters before each chunk."""
    return [text[max(0, start - 64) : start + 12] for start in range(0, len(text), 12)]


def load_version(source: Path | None) -> tuple[Redact, Redact]:
    """Returns the check of chunks and the redaction of texts, from another source folder if one is given."""
    if source is None:
        redactor: Any = importlib.import_module("outrider.permissions.redaction.redactor").Redactor()
        return lambda texts: check_chunks(redactor.is_plain, texts), lambda texts: redact(redactor.find_spans, texts)
    current = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "outrider"}
    sys.path.insert(0, str(source))
    try:
        peer: Any = importlib.import_module("outrider.permissions.texts.redact").Redactor()
    finally:
        sys.path.remove(str(source))
        for name in [name for name in sys.modules if name.split(".")[0] == "outrider"]:
            del sys.modules[name]
        sys.modules.update(current)
    return lambda texts: check_chunks(peer.is_plain, texts), lambda texts: redact(peer.spans, texts)


def check_chunks(is_plain: Callable[[str], bool], texts: list[str]) -> None:
    for text in texts:
        is_plain(text)


def redact(find_spans: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        find_spans(text)


def measure(name: str, texts: list[str], ours: tuple[Redact, Redact], peer: tuple[Redact, Redact] | None) -> Figure:
    """Measures both versions alternately, so that other load slows both; takes the fastest round of each."""
    kind = 0 if name.startswith("streamed") else 1
    versions = [ours[kind]] if peer is None else [ours[kind], peer[kind]]
    times: list[list[float]] = [[] for _ in versions]
    for _ in range(ROUNDS):
        for version, found in zip(versions, times, strict=True):
            start = time.perf_counter()
            version(texts)
            found.append((time.perf_counter() - start) / len(texts) * 1e6)
    best = [min(found) for found in times]
    if peer is None:
        return Figure(f"redact: {name}", best[0], "us")
    ratio = best[0] / best[1]
    return Figure(f"redact: {name}", best[0], "us", ratio, "<= 1.0x of the base", ratio <= 1)
