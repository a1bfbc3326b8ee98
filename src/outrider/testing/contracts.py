"""A scripted model, contract suites for stores and providers that a program implements itself, and crash tests.

They need no test framework: `check_store` and `check_provider` run every check, and raise one AssertionError that lists
the failed ones.
"""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, assert_never

import msgspec

from outrider.errors import ConfigurationError, LeaseLostError, SessionInUseError, SessionNotFoundError, StoreError
from outrider.models.clients import CustomClient, as_provider, model_client
from outrider.models.context_ledger import build_report
from outrider.providers.provider import CustomProvider, ModelClient
from outrider.sessions.leases import current_process
from outrider.sessions.records import Approval, InboxItem, SessionFilter, SessionUpdate, StoredSession
from outrider.sessions.session import Session, SessionTime
from outrider.sessions.store import STORE_METHODS, Store
from outrider.types.agents import Provider
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import CacheTokens, TextPart, Tokens, ToolPart, ToolResultPart, ToolUsePart
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    ModelMessage,
    PartEnd,
    PartStart,
    Prompt,
    ReasoningDelta,
    RemoteEvent,
    Request,
    Retry,
    TextDelta,
    ToolSpec,
    UsageReport,
)
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolPending

CHECK_SECONDS = 60.0


def scripted_model(*answers: Any, name: str = "demo", **options: Any) -> Provider:
    """Returns a provider that gives these answers in order: strings, calls of tools (`call(…)`, or lists with several
    pieces), or one function that takes the request and returns an answer."""
    script = answers[0] if len(answers) == 1 and callable(answers[0]) else list(answers)
    return Provider(name, "scripted", options={"script": script, **options})


async def check_store(make_store: Callable[[], Store], *, seconds: float = CHECK_SECONDS) -> None:
    """Checks an implementation of `outrider.stores.Store`. `make_store` returns a new, empty store for each check; the
    check opens and closes it."""

    if not callable(make_store):
        raise ConfigurationError(f"check_store() takes a function that returns a new store, got {make_store!r}")

    store: object = make_store()
    if missing_methods := [name for name in STORE_METHODS if not callable(getattr(store, name, None))]:
        raise AssertionError(
            f"the contract is not fulfilled: make_store() returned a {type(store).__name__} without the methods "
            f"{', '.join(missing_methods)} of outrider.stores.Store"
        )

    async def run(check: Callable[[Store], Awaitable[None]]) -> None:
        async with make_store() as store:
            await check(store)

    await _run_checks(_STORE_CHECKS, run, seconds)


async def check_provider(
    provider: Provider | CustomProvider, model: str, *, message: str = "Say hello.", seconds: float = CHECK_SECONDS
) -> None:
    """Checks a provider of the program with a few requests to `model`."""
    own_provider = as_provider(provider)
    client = model_client(own_provider) if own_provider is provider else CustomClient(own_provider, checks_parts=False)
    request = Request(model, Prompt([ModelMessage("user", (TextPart(message),))]))
    try:
        await _run_checks(_PROVIDER_CHECKS, lambda check: check(client, request), seconds)
    finally:
        await client.aclose()


async def _run_checks(
    checks: Mapping[str, Callable[..., Awaitable[None]]], run: Callable[[Any], Awaitable[None]], seconds: float
) -> None:
    failures: list[str] = []
    for name, check in checks.items():
        try:
            async with asyncio.timeout(seconds):
                await run(check)
        except Exception as error:  # noqa: BLE001  the code under test may raise anything
            text = str(error) or (f"not done within {seconds:g} s" if isinstance(error, TimeoutError) else "")
            failures.append(f"{name}: {type(error).__name__}: {text}")
    if failures:
        raise AssertionError("the contract is not fulfilled:\n" + "\n".join(failures))


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


async def _require_error(kind: type[Exception], action: Awaitable[object], problem: str) -> None:
    try:
        await action
    except kind:
        return
    raise AssertionError(problem)


async def _create(store: Store, **fields: Any) -> StoredSession:
    return await store.create(StoredSession(**fields))


def _message(session: StoredSession, text: str, role: Any = "user") -> Message:
    message = Message(role, [TextPart(text)], time=MessageTime(now_ms()))
    message.join(session.id)
    return message


async def _fill(store: Store, session: StoredSession, *texts: str) -> list[Message]:
    messages = [_message(session, text) for text in texts]
    for message in messages:
        await store.append(session.id, [message])
    return messages


async def _texts(store: Store, session_id: str, **page: Any) -> list[str]:
    return [message.get_text_content() for message in (await store.load(session_id, **page)).messages]


async def _check_sessions(store: Store) -> None:
    session = await _create(store, title="a walk", owner="ada", metadata={"tenant": "x", "n": 1}, agent="writer")
    _require(await store.get(session.id) == session, "`get` does not return what `create` returned")
    _require(session.time is not None and session.seq == 1, "a new session needs its times and the sequence number 1")
    await _require_error(StoreError, store.create(session), "a second session with the same id is accepted")
    updated = await store.update(session.id, SessionUpdate(title="a run"))
    _require((updated.title, updated.owner) == ("a run", "ada"), "`update` does not change the title only")
    _require(updated.seq > session.seq, "`update` does not increase the sequence number")


async def _check_unknown_sessions(store: Store) -> None:
    actions: dict[str, Callable[[], Awaitable[Any]]] = {
        "get": lambda: store.get("x"),
        "load": lambda: store.load("x"),
        "append": lambda: store.append("x", []),
        "delete": lambda: store.delete("x"),
        "fork": lambda: store.fork("x"),
        "acquire": lambda: store.acquire("x", current_process()),
    }
    for name, action in actions.items():
        await _require_error(
            SessionNotFoundError, action(), f"`{name}` of an unknown id raises no SessionNotFoundError"
        )


async def _check_lists(store: Store) -> None:
    earlier = SessionTime(created=now_ms() - 60_000, updated=now_ms() - 60_000)
    sessions = [
        await _create(store, title=str(number), owner="ada" if number % 2 else "bob", time=earlier)
        for number in range(5)
    ]
    await _fill(store, sessions[0], "the newest activity")
    page = await store.list(limit=2)
    sessions_found = [*page.sessions]
    while page.next is not None:
        page = await store.list(limit=2, after=page.next)
        sessions_found += page.sessions
    _require(
        {session.id for session in sessions_found} == {session.id for session in sessions},
        "the pages of `list` do not have every session",
    )
    _require(len(sessions_found) == len(sessions), "a session is on two pages of `list`")
    _require(sessions_found[0].id == sessions[0].id, "`list` does not start with the latest activity")
    owned = (await store.list(SessionFilter(owner="ada"))).sessions
    _require({session.title for session in owned} == {"1", "3"}, "`list` does not filter by owner")


async def _check_messages(store: Store) -> None:
    session = await _create(store)
    messages = await _fill(store, session, "one", "two", "three", "four")
    _require(await _texts(store, session.id) == ["one", "two", "three", "four"], "`load` has another order")
    _require(await _texts(store, session.id, limit=2) == ["three", "four"], "`limit` does not return the last ones")
    before = await _texts(store, session.id, limit=2, before=messages[2].id)
    _require(before == ["one", "two"], "`before` does not return the ones before a message")
    after = await _texts(store, session.id, limit=2, after=messages[0].id)
    _require(after == ["two", "three"], "`after` does not return the first ones after a message")
    call = ToolPart(call_id="c", tool="t", state=ToolPending({}, "", "ready"))
    call.adopt(messages[3].id, session.id)
    await store.append(session.id, [call])
    ended_call = msgspec.structs.replace(call, state=ToolCompleted({}, "done", EndedTime(1, 2)))
    await store.append(session.id, [ended_call])
    parts = (await store.load(session.id)).messages[3].parts
    _require([part.id for part in parts[1:]] == [call.id], "a part that is written again is there twice")
    _require(parts[-1] == ended_call, "a part that is written again does not replace the stored one")


async def _check_changes(store: Store) -> None:
    session = await _create(store)
    await _fill(store, session, "one", "two")
    numbers: list[int] = []
    async with aclosing(store.changes(session.id, follow=False)) as changes:
        async for change in changes:
            numbers.append(change.seq)
    last_seq = (await store.get(session.id)).seq
    _require(
        numbers == sorted(numbers) and len(numbers) == len(set(numbers)), "`changes` has sequence numbers out of order"
    )
    _require(numbers and numbers[-1] == last_seq, "`changes` does not end with the last sequence number")
    async with aclosing(store.changes(session.id, after=last_seq)) as changes:
        next_change = asyncio.ensure_future(anext(changes))
        await _fill(store, session, "three")
        _require((await next_change).seq == last_seq + 1, "`changes` does not continue without a gap")


async def _check_leases(store: Store) -> None:
    session, first_owner, second_owner = await _create(store), current_process(), current_process()
    lease = await store.acquire(session.id, first_owner)
    await _require_error(SessionInUseError, store.acquire(session.id, second_owner), "two owners can hold a lease")
    message = _message(session, "x")
    await _require_error(
        SessionInUseError, store.append(session.id, [message]), "a leased session can be written without its token"
    )
    await store.append(session.id, [message], token=lease.token)
    newer = await store.acquire(session.id, second_owner, take_over=True)
    _require(newer.token > lease.token, "the token of a new lease is not larger")
    await _require_error(
        LeaseLostError, store.append(session.id, [message], token=lease.token), "an outdated token can write"
    )
    await _require_error(LeaseLostError, store.renew(lease), "a lost lease can be renewed")
    await store.release(lease)
    await store.append(session.id, [message], token=newer.token)
    await store.release(newer)
    await store.append(session.id, [message])


async def _check_inbox(store: Store) -> None:
    session = await _create(store)
    items = [InboxItem(session_id=session.id, message=_message(session, text)) for text in ("one", "two")]
    for item in (*items, items[0]):
        await store.put_inbox(item)
    queued = await store.inbox(session.id)
    _require(
        [item.id for item in queued] == [item.id for item in items], "the inbox has another order or an item twice"
    )
    await store.append(session.id, [items[0].message], takes=[items[0].id])
    _require([item.id for item in await store.inbox(session.id)] == [items[1].id], "a taken item stays in the inbox")
    again = store.append(session.id, [items[0].message], takes=[items[0].id])
    await _require_error(StoreError, again, "an item can be taken twice")


async def _check_approvals(store: Store) -> None:
    session = await _create(store)
    question = Approval(session_id=session.id, call_id="c", tool="shell", input={"a": 1}, fingerprint="f")
    stored = await store.ask(question)
    again = await store.ask(Approval(session_id=session.id, call_id="c", tool="shell", input={"a": 1}, fingerprint="f"))
    _require(again.id == stored.id, "the same question is stored twice")
    first = await store.answer(stored.id, "allowed", by="ada")
    second = await store.answer(stored.id, "denied", by="bob")
    _require((first.answer, second.answer, second.answered_by) == ("allowed", "allowed", "ada"), "a later answer wins")
    withdrawn = await store.answer(stored.id, "withdrawn")
    _require(withdrawn.answer == "allowed", "a question that is withdrawn late loses its answer")
    _require(not await store.approvals(session.id, only_open=True), "an answered question is still open")


async def _check_forks(store: Store) -> None:
    session = await _create(store, title="first", owner="ada")
    messages = await _fill(store, session, "one", "two", "three")
    fork = await store.fork(session.id, at=messages[1].id, title="copy")
    _require(await _texts(store, fork.id) == ["one", "two"], "a fork does not end with the given message")
    _require((fork.title, fork.owner) == ("copy", "ada"), "a fork has another title or owner")
    await _fill(store, fork, "other")
    _require(len(await _texts(store, session.id)) == 3, "a change of the fork changes the original")


async def _check_search(store: Store) -> None:
    session, unrelated = await _create(store), await _create(store)
    await _fill(store, session, "the walrus and the carpenter")
    await _fill(store, unrelated, "the carpenter alone")
    hits = await store.search("walrus carpenter")
    _require({hit.session_id for hit in hits} == {session.id}, "`search` finds text without every word of the query")
    _require(await store.search("carp*", session_id=unrelated.id), "`search` does not find the start of a word")
    _require(not await store.search("unicorn"), "`search` finds words that are not there")


async def _check_deletion(store: Store) -> None:
    root, busy, idle = await _create(store), await _create(store), await _create(store)
    child = await _create(store, parent_id=root.id)
    await store.delete(root.id)
    for session in (root, child):
        await _require_error(SessionNotFoundError, store.get(session.id), "a session or its child is not deleted")
    lease = await store.acquire(busy.id, current_process())
    await _require_error(SessionInUseError, store.delete(busy.id), "a leased session can be deleted")
    _require(await store.clear() == 1, "`clear` does not return the number of deleted sessions")
    await store.get(busy.id)
    await _require_error(SessionNotFoundError, store.get(idle.id), "`clear` leaves a session that is not leased")
    await store.release(lease)


_STORE_CHECKS: Mapping[str, Callable[[Store], Awaitable[None]]] = {
    "sessions": _check_sessions,
    "unknown sessions": _check_unknown_sessions,
    "lists": _check_lists,
    "messages": _check_messages,
    "changes": _check_changes,
    "leases": _check_leases,
    "inbox": _check_inbox,
    "approvals": _check_approvals,
    "forks": _check_forks,
    "search": _check_search,
    "deletion": _check_deletion,
}


async def _collect(client: ModelClient, request: Request) -> list[Delta]:
    async with aclosing(client.stream(request)) as deltas:
        return [delta async for delta in deltas]


async def _check_answer(client: ModelClient, request: Request) -> None:
    before = msgspec.json.encode([message.to_api_format() for message in request.prompt])
    deltas = await _collect(client, request)
    _require(msgspec.json.encode([m.to_api_format() for m in request.prompt]) == before, "the request was changed")
    problems = _find_delta_problems(deltas)
    _require(not problems, "; ".join(problems))
    has_content = any(isinstance(delta, TextDelta | PartStart) for delta in deltas)
    _require(has_content, "the answer has no part")


def _find_delta_problems(deltas: list[Delta]) -> list[str]:
    """Returns what is wrong with the deltas of an answer; a Retry withdraws those before it."""
    starts = [position for position, delta in enumerate(deltas) if isinstance(delta, Retry)]
    checker = _DeltaChecker()
    for delta in deltas[starts[-1] + 1 if starts else 0 :]:
        checker.add(delta)
    checker.finish()
    if sum(isinstance(delta, Finish) for delta in deltas) != 1 or not isinstance(deltas[-1], Finish):
        checker.problems.append("an answer ends with exactly one Finish")
    return checker.problems


class _DeltaChecker:
    """Collects what is wrong with the deltas of one attempt."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._kinds: dict[int, str] = {}
        self._inputs: dict[int, str] = {}
        self._ended: set[int] = set()

    def add(self, delta: Delta) -> None:
        match delta:
            case PartStart():
                self._start_part(delta)
            case TextDelta(index):
                self._check_part(index, "text")
            case ReasoningDelta(index):
                self._check_part(index, "reasoning")
            case InputDelta(index, text):
                self._check_part(index, "tool")
                self._inputs[index] = self._inputs.get(index, "") + text
            case PartEnd(index):
                self._ended.add(index)
            case UsageReport(tokens):
                if min(tokens.input, tokens.output, tokens.reasoning, *_cache_counts(tokens)) < 0:
                    self.problems.append("a usage report has negative counts")
            case AnswerStart() | Retry() | RemoteEvent() | Finish():
                pass
            case _:
                assert_never(delta)

    def finish(self) -> None:
        if open_parts := self._kinds.keys() - self._ended:
            self.problems.append(f"the parts {sorted(open_parts)} have no PartEnd")
        for index, text in self._inputs.items():
            try:
                msgspec.json.decode(text or "{}", type=dict[str, Any])
            except msgspec.DecodeError:
                self.problems.append(f"the input of the call {index} is not a JSON object")

    def _start_part(self, start: PartStart) -> None:
        if self._kinds and start.index not in self._kinds and start.index < max(self._kinds):
            self.problems.append(f"part {start.index} starts after part {max(self._kinds)}")
        if start.kind == "tool" and not (start.call_id and start.tool):
            self.problems.append(f"the call {start.index} has no call_id or no tool")
        self._kinds[start.index] = start.kind

    def _check_part(self, index: int, kind: str) -> None:
        if self._kinds.get(index) != kind or index in self._ended:
            self.problems.append(f"a delta {index} is outside of a part of the kind {kind}")


def _cache_counts(tokens: Tokens) -> tuple[int, int]:
    cache: CacheTokens = tokens.cache
    return cache.read, cache.write


async def _check_conversation(client: ModelClient, request: Request) -> None:
    """Checks that a conversation with a call, its result and a tool is accepted."""
    tool = ToolSpec("look", "Look at something.", {"type": "object", "properties": {"at": {"type": "string"}}})
    call = ToolUsePart(tool_id="call_1", tool_name="look", tool_input={"at": "it"})
    result = ToolResultPart(tool_use_id="call_1", content="a cat", tool_name="look")
    messages = [*request.prompt, ModelMessage("assistant", (call,)), ModelMessage("user", (result,))]
    longer = msgspec.structs.replace(request, prompt=Prompt(messages), tools=(tool,), system="You look.")
    await _check_answer(client, longer)
    await _check_answer(client, msgspec.structs.replace(longer, stream=False))


async def _check_parallel(client: ModelClient, request: Request) -> None:
    answers = [asyncio.ensure_future(_check_answer(client, request)) for _ in range(3)]
    await asyncio.wait(answers)
    for error in [answer.exception() for answer in answers]:
        if error is not None:
            raise error


async def _check_closing(client: ModelClient, request: Request) -> None:
    """Checks that an answer can be left after its first delta, and that the next one is complete."""
    deltas = client.stream(request)
    await anext(deltas)
    await deltas.aclose()
    await _check_answer(client, request)


async def _check_family(client: ModelClient, request: Request) -> None:
    family = client.model_family(request.model)
    _require(isinstance(family, str) and family, "model_family returns no name")  # pyright: ignore[reportUnnecessaryIsInstance]
    _require(family == client.model_family(request.model), "model_family changes")


_PROVIDER_CHECKS: Mapping[str, Callable[[ModelClient, Request], Awaitable[None]]] = {
    "answer": _check_answer,
    "conversation": _check_conversation,
    "parallel answers": _check_parallel,
    "closing": _check_closing,
    "model family": _check_family,
}


def assert_stable_prefix(session: Session) -> None:
    """Raises AssertionError unless each request of a session continues the one before byte for byte, so that a
    provider can read it from its prompt cache. The message names the step, the first byte that differs and the
    cause."""
    if not isinstance(session, Session):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"assert_stable_prefix() takes a Session, got {type(session).__name__}")
    report = build_report(session.id, session.messages)
    broken: list[str] = []
    for step in report.steps:
        if not step.recorded:
            broken.append(f"step {step.step}: its request is not recorded; the provider has no HTTP API")
        elif step.miss is not None and step.miss.cause not in ("expired", "vendor"):
            broken.append(f"step {step.step}, byte {step.miss.offset:,}: {step.miss.describe()}")
    assert not broken, "requests do not continue the ones before them:\n" + "\n".join(broken)


CRASH_POINTS = {
    "before a request": "FP-before-request",
    "in a streamed answer": "FP-mid-stream",
    "before a call is stored": "FP-before-record-call",
    "before a tool starts": "FP-after-record-call",
    "when a tool reports progress": "FP-tool-mid",
    "after an effect, before its result is stored": "FP-after-effect-before-result",
    "after a result is stored": "FP-after-result",
    "after a commit of the store": "FP-after-commit",
}
"""Where `crash` kills a program: the text of the report, and the name of the point in the engine."""


class CrashRun(msgspec.Struct, frozen=True):
    """A program that was killed at a point, and started again. `repeated_effects` happened more often than
    without a crash, `missing_effects` less often, both with the difference. `error` is the output of a second start
    that failed."""

    point: str
    visit: int
    repeated_effects: dict[str, int] = {}
    missing_effects: dict[str, int] = {}
    error: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether every effect happened as often as without a crash."""
        return not (self.repeated_effects or self.missing_effects or self.error)


class CrashReport(msgspec.Struct, frozen=True):
    """What `crash` found. `expected` has the effects of the program without a crash."""

    expected: dict[str, int]
    runs: tuple[CrashRun, ...]

    @property
    def runs_with_repeated_effects(self) -> list[CrashRun]:
        """The crashes after which an effect happened more often than without one."""
        return [run for run in self.runs if run.repeated_effects]

    @property
    def runs_with_missing_effects(self) -> list[CrashRun]:
        """The crashes after which an effect happened less often than without one."""
        return [run for run in self.runs if run.missing_effects]

    def text(self) -> str:
        """Returns a line for every crash."""
        lines = [f"{len(self.runs)} crashes; effects without a crash: {_list_effects(self.expected)}"]
        for run in self.runs:
            findings = [
                f"ran twice: {_list_effects(run.repeated_effects)}" if run.repeated_effects else "",
                f"lost: {_list_effects(run.missing_effects)}" if run.missing_effects else "",
                f"the second start failed: {run.error[-500:]}" if run.error else "",
            ]
            lines.append(f"{run.point}, visit {run.visit}: {'; '.join(filter(None, findings)) or 'exact'}")
        return "\n".join(lines)

    def check(self, *, may_lose: bool = False) -> None:
        """Raises AssertionError if an effect happened twice, a second start failed or, without `may_lose`, an effect
        was lost. The engine never repeats a call whose effect is unknown, so a model that does not call the tool
        again loses the effect of a call that was stored but had not started."""
        wrong = [
            run for run in self.runs if run.repeated_effects or run.error or (run.missing_effects and not may_lose)
        ]
        if wrong:
            raise AssertionError(CrashReport(self.expected, tuple(wrong)).text())


def crash(
    program: Sequence[str | Path],
    effects: Callable[[Path], Iterable[str]],
    *,
    points: Mapping[str, str] = CRASH_POINTS,
    visits: int = 3,
    seconds: float = CHECK_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> CrashReport:
    """Kills a program (SIGKILL) at every point around the calls of its tools, starts it again, and returns which
    effects happened twice and which were lost.

    `program` is a command that runs an agent with a stored session, and resumes that session if it exists. It starts in
    a new, empty folder for each crash, and a second time in the same folder. `effects` returns the names of the effects
    that the program had in that folder, one for each time that an effect happened. Each point is tried at its first
    `visits` visits. Works on systems with SIGKILL."""
    if isinstance(program, str):
        raise ConfigurationError(f"crash() takes the words of a command, such as {program.split()!r}, got one string")
    if not callable(effects):
        raise ConfigurationError(f"crash(): effects is a function that takes a folder, got {effects!r}")
    variables = os.environ | dict(environment or {})
    variables.pop("OUTRIDER_FAULT", None)
    command = [str(word) for word in program]
    with tempfile.TemporaryDirectory(prefix="outrider-crash-") as name:
        folder = Path(name)
        code, output = _run_program(command, folder, variables, seconds)
        if code != 0:
            raise AssertionError(f"the program fails without a crash (exit code {code}):\n{output[-2_000:]}")
        expected = Counter(effects(folder))
    runs = [
        run
        for label, point in points.items()
        for run in _crash_at(command, effects, expected, label, point, visits, variables, seconds)
    ]
    return CrashReport(dict(expected), tuple(runs))


def _crash_at(
    command: list[str],
    effects: Callable[[Path], Iterable[str]],
    expected: Counter[str],
    label: str,
    point: str,
    visits: int,
    variables: Mapping[str, str],
    seconds: float,
) -> Iterator[CrashRun]:
    for visit in range(1, visits + 1):
        with tempfile.TemporaryDirectory(prefix="outrider-crash-") as name:
            folder = Path(name)
            fault = {**variables, "OUTRIDER_FAULT": f"{point}@{visit}"}
            code, _ = _run_program(command, folder, fault, seconds)
            if code != -signal.SIGKILL:
                return  # the program does not visit this point so often
            code, output = _run_program(command, folder, variables, seconds)
            counted = Counter(effects(folder))
            yield CrashRun(label, visit, dict(counted - expected), dict(expected - counted), output if code else "")


def _run_program(command: list[str], folder: Path, variables: Mapping[str, str], seconds: float) -> tuple[int, str]:
    try:
        process = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {seconds:g} seconds"
    return process.returncode, process.stdout + process.stderr


def _list_effects(effects: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in effects.items()) or "none"
