"""Sums usage by day, model, agent or tool from stored rows."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from outrider.sessions.records import Grouping, UsageRow
from outrider.types.messages import MessageTime
from outrider.types.parts import ModelRef
from outrider.types.usage import Tokens


class AnswerUsage(msgspec.Struct, frozen=True):
    """The fields of a message row that statistics need; the JSON decoder skips all others."""

    role: str = "assistant"
    agent: str = ""
    model: ModelRef | None = None
    cost: Decimal | None = None
    tokens: Tokens = Tokens()
    time: MessageTime | None = None


class CallUsage(msgspec.Struct, frozen=True):
    tool: str
    outcome: str
    start: int
    end: int


USAGE_MARKER = b'"tokens"'  # occurs in the JSON of every message with token usage
_decoder = msgspec.json.Decoder(AnswerUsage)


def decode_answer_usage(body: bytes) -> AnswerUsage | None:
    """Decodes the usage of a message row. Returns None for a damaged row and for user input without usage."""
    try:
        answer = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return answer if answer.role == "assistant" or answer.tokens.total else None


def usage_by_tool(calls: Iterable[CallUsage]) -> list[UsageRow]:
    rows: dict[str, UsageRow] = {}
    for call in calls:
        row = rows.get(call.tool) or UsageRow(key=call.tool)
        rows[call.tool] = msgspec.structs.replace(
            row,
            calls=row.calls + 1,
            errors=row.errors + (call.outcome != "completed"),
            duration_ms=row.duration_ms + max(0, call.end - call.start),
        )
    return sorted(rows.values(), key=lambda row: (-row.calls, row.key))


def usage_by_answer(answers: Iterable[AnswerUsage], by: Grouping) -> list[UsageRow]:
    rows: dict[str, UsageRow] = {}
    for answer in answers:
        key = _group_key(answer, by)
        row = rows.get(key) or UsageRow(key=key)
        rows[key] = msgspec.structs.replace(
            row,
            messages=row.messages + 1,
            tokens=row.tokens + answer.tokens,
            cost=row.cost + (answer.cost or 0),
            unpriced=row.unpriced + (answer.cost is None and answer.tokens.total > 0),
        )
    return sorted(rows.values(), key=lambda row: row.key)


def _group_key(answer: AnswerUsage, by: Grouping) -> str:
    if by == "day":
        return utc_day(answer.time.created if answer.time else 0)
    if by == "model":
        return f"{answer.model.provider}/{answer.model.model}" if answer.model else ""
    return answer.agent


def utc_day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d")
