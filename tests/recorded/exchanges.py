"""Recorded exchanges, decoded by a wire format and compared with the expected values."""

import importlib.util
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from outrider.errors import ProviderError
from outrider.http.transport import ServerEventReader
from outrider.providers.provider import AnswerAssembler, AnswerDecoder, WireFormat
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolPart
from outrider.types.request import Answer, Delta, Prompt, Request

Exchange = dict[str, Any]


@cache
def load(shared: Path, module: str) -> ModuleType:
    """A module of the recordings folder, which is no package."""
    folder = shared / "recordings"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(module, folder / f"{module}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@cache
def corpus(shared: Path) -> Any:
    return load(shared, "corpus").Corpus(shared / "recordings" / "dev.jsonl.gz")


def exchanges(shared: Path, api: str, **choice: Any) -> Iterator[Exchange]:
    found = corpus(shared)
    for meta in found.select(api=api, **choice):
        yield found.get(meta["id"])


def pieces(body: bytes, size: int | random.Random) -> Iterator[bytes]:
    """The body in chunks of one size, or of random sizes."""
    at = 0
    while at < len(body):
        step = size if isinstance(size, int) else size.randint(1, 3000)
        yield body[at : at + step]
        at += step


def deltas(decoder: AnswerDecoder, body: bytes, size: int | random.Random) -> Iterator[Delta]:
    """What a transport does: events are fed as their bytes arrive, JSON is read in one piece."""
    if body.lstrip()[:1] in (b"{", b"["):
        yield from decoder.decode_body(body)
        return
    reader = ServerEventReader()
    for piece in pieces(body, size):
        for name, data in reader.feed(piece):
            yield from decoder.feed(name, data)
    for name, data in reader.close():
        yield from decoder.feed(name, data)
    yield from decoder.close()


def read(wire: WireFormat, exchange: Exchange, size: int | random.Random = 65536) -> Answer | ProviderError:
    """The answer, or the error that it was."""
    body = exchange["response"]["body"].encode()
    status = exchange["response"]["status"]
    if status >= 400:
        return wire.decode_error(status, exchange["response"].get("headers") or {}, body)
    request = Request(model="m", prompt=Prompt(), stream=exchange["streaming"])
    assembler = AnswerAssembler(wire.model_family("m"))
    try:
        for delta in deltas(wire.create_decoder(request), body, size):
            assembler.add(delta)
    except ProviderError as error:
        return error
    return assembler.build_answer()


def text_of(answer: Answer, family: str) -> str:
    """The text of the model, without a refusal, which the recordings list separately."""
    texts = answer.message.get_parts_by_type(TextPart)
    return "".join(part.text for part in texts if not part.metadata.get(family, {}).get("refusal"))


def refusal_of(answer: Answer, family: str) -> str | None:
    texts = answer.message.get_parts_by_type(TextPart)
    return "".join(part.text for part in texts if part.metadata.get(family, {}).get("refusal")) or None


def reasoning_of(answer: Answer, joint: str) -> str:
    return joint.join(part.text for part in answer.message.get_parts_by_type(ReasoningPart) if part.text)


def calls_of(answer: Answer) -> list[ToolPart]:
    return answer.message.get_parts_by_type(ToolPart)


def files_of(answer: Answer) -> list[FilePart]:
    return answer.message.get_parts_by_type(FilePart)


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {found[name]!r:.300} is not {expected[name]!r:.300}"
        for name in found
        if found[name] != expected[name]
    ]
