"""Google's Gemini API: its rules for a conversation, its chunks, its refusals."""

import asyncio
from collections.abc import Iterator
from itertools import chain
from typing import Any

from outrider.types.parts import ToolUsePart
from tests.fakes.vendors.vendor import Body, Frame, Piece, Refusal, Stop, Thought, events, halves, json_text

USAGE = {"promptTokenCount": 20, "candidatesTokenCount": 10, "totalTokenCount": 30}
STATUS = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


class GoogleApi:
    kind = "google"
    model = "gemini-2.5-flash"
    path = "/v1beta/models/"
    base = ""
    overloaded = Refusal(503, "The model is overloaded. Please try again later.")
    overflow = Refusal(400, "The input token count (1234567) exceeds the maximum number of tokens allowed (1048576).")

    def problem(self, body: Body) -> str | None:
        contents = body.get("contents") or []
        if not contents:
            return "* GenerateContentRequest.contents: contents is not specified\n"
        return next(chain(_contents(contents), _turns(_merged(contents))), None)

    def refusal(self, refusal: Refusal) -> Body:
        return {"error": {"code": refusal.status, "message": refusal.message, "status": STATUS[refusal.status]}}

    def streams(self, target: str, body: Body) -> bool:
        return ":streamGenerateContent" in target

    def whole(self, pieces: list[Piece]) -> Body:
        return _chunk([part for piece in pieces for part in _parts(piece)], _finish(pieces))

    def stream(self, pieces: list[Piece]) -> Iterator[Frame]:
        return events(_chunks(pieces))

    def results(self, body: Body) -> list[str]:
        given = [part["functionResponse"]["response"] for part in _all(body) if "functionResponse" in part]
        return [next(iter(response.values())) if len(response) == 1 else json_text(response) for response in given]

    def texts(self, body: Body) -> list[str]:
        return [part["text"] for part in _all(body, "user") if "text" in part]

    def seals(self, body: Body) -> list[str]:
        return [part["thoughtSignature"] for part in _all(body) if "thoughtSignature" in part]

    def schema(self, body: Body) -> Body | None:
        config = body.get("generationConfig", {})
        return config.get("responseJsonSchema") or config.get("responseSchema")

    def system(self, body: Body) -> str:
        return "".join(part["text"] for part in body.get("systemInstruction", {}).get("parts", ()))


def _chunks(pieces: list[Piece]) -> Iterator[tuple[str, Body] | asyncio.Event]:
    for piece in pieces:
        match piece:
            case asyncio.Event():
                yield piece
            case str():
                yield from (("", _chunk([{"text": half}])) for half in halves(piece))
            case _:
                yield "", _chunk(_parts(piece))
    yield "", _chunk([], _finish(pieces))


def _parts(piece: Any) -> list[Body]:
    match piece:
        case str():
            return [{"text": piece}]
        case Thought(text, seal):
            return [{"text": text, "thought": True}, {"text": "", "thoughtSignature": seal}]
        case ToolUsePart():
            return [{"functionCall": {"name": piece.tool_name, "args": piece.tool_input}}]
        case _:
            return []


def _chunk(parts: list[Body], finish: str | None = None) -> Body:
    candidate: Body = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "gemini-2.5-flash", "responseId": "r1"}


def _finish(pieces: list[Piece]) -> str:
    return "MAX_TOKENS" if any(isinstance(piece, Stop) for piece in pieces) else "STOP"


def _contents(contents: list[Body]) -> Iterator[str]:
    for content in contents:
        if content.get("role") not in ("user", "model"):
            yield "Please use a valid role: user, model."
        if not content.get("parts"):
            yield "* GenerateContentRequest.contents: contents.parts must not be empty.\n"
        for part in content.get("parts") or ():
            if not part.keys() & {"text", "functionCall", "functionResponse", "inlineData", "fileData"}:
                yield "* GenerateContentRequest.contents.parts.data: required oneof field 'data' must have one field"


def _merged(contents: list[Body]) -> list[tuple[str, list[Body]]]:
    merged: list[tuple[str, list[Body]]] = []
    for content in contents:
        if merged and merged[-1][0] == content["role"]:
            merged[-1][1].extend(content["parts"])
        else:
            merged.append((content["role"], list(content["parts"])))
    return merged


def _turns(contents: list[tuple[str, list[Body]]]) -> Iterator[str]:
    asked: list[str] = []
    if contents[0][0] == "model" and any("functionCall" in part for part in contents[0][1]):
        yield (
            "Please ensure that function call turn comes immediately after a user turn or after a function "
            "response turn."
        )
    for _, parts in [*contents, ("user", [])]:
        given = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        if sorted(given) != sorted(asked):
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        asked = [part["functionCall"]["name"] for part in parts if "functionCall" in part]


def _all(body: Body, *roles: str) -> Iterator[Body]:
    for content in body["contents"]:
        if not roles or content["role"] in roles:
            yield from content["parts"]
