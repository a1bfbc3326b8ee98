"""Names that are stored or sent do not change: tags, fields, errors, tables, workflows, routes.

`stored_names.json` was computed from version 0.1. Entries are keyed by what they are about, not by the names of
classes, so that classes can be renamed. `make names` adds a new field, event or route to the file; an existing one is
changed only together with a migration of what is stored.

    python -m tests.architecture.test_stored_names write   # writes the names of the code as it is now
    python -m tests.architecture.test_stored_names find    # says where structs are now that were renamed or moved
"""

import inspect
import json
import pkgutil
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import outrider
from outrider import errors, events
from outrider.config import file

# Where internal things are: adapt these after a rename. The first place that exists counts; the last one is where
# version 0.1 had it.
STRUCTS: dict[str, str] = {
    # sessions
    "session record": "sessions.records:StoredSession",
    "session update": "sessions.records:SessionUpdate",
    "session page": "sessions.records:SessionPage",
    "session time": "sessions.session:SessionTime",
    "session fork point": "sessions.session:ForkPoint",
    "session row, rest": (
        "sessions.rows.session_rows:_SessionExtras "
        "sessions.rows.session_rows:_Rest "
        "sessions.rows.rows:_Rest "
        "sessions.rows.sessions:_Rest"
    ),
    "message": "types.messages:Message",
    "message time": "types.messages:MessageTime",
    "message path": "types.messages:MessagePath",
    "message error": "types.messages:MessageError",
    "model reference": "types.parts:ModelRef",
    "part time": "types.parts:PartTime",
    "retry time": "types.parts:RetryTime",
    "text range": "types.parts:TextRange",
    "running time": "types.tool_state:RunningTime",
    "ended time": "types.tool_state:EndedTime",
    "attachment": "types.tool_state:Attachment",
    "request record": "types.parts:SentRequestRecord",
    "request record, edit": "types.parts:BodyEdit",
    "cache miss": "types.parts:CacheMiss types.usage:CacheMiss",
    "tokens": "types.parts:Tokens types.usage:Tokens",
    "cache tokens": "types.parts:CacheTokens types.usage:CacheTokens",
    "usage": "types.parts:Usage types.usage:Usage",
    "change of a session": "sessions.records:SessionChange",
    "change of a message": "sessions.records:MessageChange",
    "change of a part": "sessions.records:PartChange",
    "change of the inbox": "sessions.records:InboxChange",
    "change of an approval": "sessions.records:ApprovalChange",
    "change of a damaged row": "sessions.records:DamagedChange",
    "change, deleted": "sessions.records:DeletedChange",
    "damaged row": "sessions.records:DamagedRow sessions.records:Damaged",
    "lease": "sessions.records:Lease",
    "lease owner": "sessions.records:ProcessIdentity sessions.records:Owner",
    "inbox item": "sessions.records:InboxItem",
    "approval": "sessions.records:Approval",
    "search hit": "sessions.records:SearchHit",
    "usage row": "sessions.records:UsageRow",
    "export": "sessions.export:SessionExport sessions.export:Export sessions.transfer.exports:Export",
    "export, session": "sessions.export:ExportedSession sessions.transfer.exports:ExportedSession",
    "import": "sessions.export:ImportResult sessions.export:Imported sessions.transfer.exports:Imported",
    "plan": "engine.plans:ProposedPlan engine.plans:Plan app.inputs.plans:Plan",
    "todo": "types.tool_state:TodoItem tools.builtin.todo:TodoItem",
    "question": "tools.builtin.question:UserQuestion",
    "question that waits": "engine.questions:AskedQuestion app.inputs.questions:AskedQuestion",
    # undo
    "undo, change set": "sessions.snapshots.changes:ChangeSet",
    "undo, file change": "sessions.snapshots.changes:FileChange",
    "undo, origin": "sessions.snapshots.changes:ChangeOrigin sessions.snapshots.changes:Origin",
    "undo, caller": "sessions.snapshots.changes:ParentCall sessions.snapshots.changes:Caller",
    "undo, under way": "sessions.snapshots.changes:PendingOperation sessions.snapshots.changes:UnderWay",
    "undo, file state": "sessions.snapshots.scanner:FileState sessions.snapshots.images:FileState "
    "sessions.snapshots.images:Image",
    "undo, snapshot": (
        "sessions.snapshots.scanner:WorkspaceSnapshot "
        "sessions.snapshots.scanner:Snapshot "
        "sessions.snapshots.images:Snapshot"
    ),
    "undo, seen": (
        "sessions.snapshots.scanner:ScannedFile sessions.snapshots.scanner:Seen sessions.snapshots.images:Seen"
    ),
    "undo, file action": "sessions.snapshots.restore:FileAction sessions.snapshots.undoing:FileAction",
    # requests: on cassettes and between servers
    "agent": "types.agents:Agent",
    "provider": "types.agents:Provider",
    "limits": "types.agents:Limits",
    "agent message": "types.agents:AgentMessage",
    "tool spec": "types.request:ToolSpec",
    "tool choice": "types.request:ToolChoice",
    "output schema": "types.request:OutputSchema",
    "model settings": "types.request:ModelSettings",
    "allowance": "types.request:RequestAllowance",
    "cassette, head": "providers.cassettes.cassette:_CassetteHeader providers.cassettes.cassette:_Head",
    "cassette, exchange": "providers.cassettes.cassette:RecordedExchange",
    "cassette, call": "providers.cassettes.cassette:RecordedCall",
    "cassette, chunk": "providers.cassettes.cassette:RecordedChunk",
    "cassette, failure": "providers.cassettes.cassette:RecordedFailure",
    "cassette, growth": (
        "providers.cassettes.cassette:BodyGrowth providers.cassettes.cassette:Growth providers.cassettes.growth:Growth"
    ),
    "cassette, refusal": (
        "providers.cassettes.record:_RecordedError "
        "providers.cassettes.record:_Refusal "
        "providers.cassettes.recording:_Refusal "
        "providers.cassettes.unwired:_Refusal"
    ),
    "cassette options": (
        "providers.cassettes.replay:CassetteOptions "
        "providers.cassettes.transport_factory:CassetteOptions "
        "providers.cassettes.transport_factory:DeckOptions "
        "providers.cassettes.deck:DeckOptions"
    ),
    "retry options": "types.request:RetryPolicy providers.client:RetryPolicy providers.transport.retry:RetryPolicy",
    "rate limit options": (
        "providers.client:RateLimit providers.rate_limit:RateLimit providers.transport.rate_limit:RateLimit"
    ),
    "timeout options": (
        "http.transport:HttpTimeouts providers.transport.transport:HttpTimeouts providers.transport.transport:Timeouts"
    ),
    # jobs
    "job": "background.records:JobSpec background.records:Job background.runs:Job",
    "job terms": "background.records:JobOverrides background.records:Terms background.runs:Terms",
    "job outcome": "background.records:RunOutcome background.records:Outcome background.runs:Outcome",
    "run": "background.records:Run background.runs:Run",
    "job place": "background.jobs:QueuePlacement background.jobs:Place",
    "job report": "background.reports:JobReport background.reports:Report background.endings.reports:Report",
    "job changes": (
        "background.worktrees:WorktreeChanges background.worktrees:Changes background.worktrees.worktrees:Changes"
    ),
    "job notice": "background.webhooks:WebhookNotice background.webhooks:Notice background.endings.notices:Notice",
    "job worktree": "project.sandbox:RunWorktree project.sandbox:Worktree app.workspace.worktrees:Worktree",
    "schedule": "background.schedules:Schedule background.times.schedules:Schedule",
    "worker lock": (
        "background.local_worker:LockHolder background.local_worker:Holding background.resident.post:Holding"
    ),
    # between a server and its clients
    "remote, health": "remote.engine:ServerHealth remote.connect:Health app.remote.connect:Health",
    "remote, agent card": "remote.engine:AgentSummary remote.connect:AgentCard app.remote.connect:AgentCard",
    "remote, refusal": "remote.client:_ErrorResponse remote.client:_Refusal app.remote.refusals:_Refusal",
    "remote, error": "remote.client:_ErrorBody remote.client:_Error app.remote.refusals:_Error",
    "remote, turn ended": "remote.followed_session:RemoteTurnEnd remote.followed_session:Ended app.remote.turns:Ended",
    "remote, prompted": (
        "remote.followed_session:PromptResult remote.followed_session:Prompted app.remote.turns:Prompted"
    ),
    "remote, compacted": "remote.engine:CompactionResult remote.engine:Shortened app.remote.engine:Shortened",
    "peer, turn ended early": "remote.agent_server:FailedTurn remote.agent_server:Ended app.peers.answering:Ended",
    "peer, heard": (
        "providers.remote_agent:_EventPayload providers.remote_agent:_Heard providers.outrider.decode:_Heard"
    ),
    "peer, failure": (
        "providers.remote_agent:_AgentFailure providers.remote_agent:_Failure providers.outrider.decode:_Failure"
    ),
    "peer, call": "server.routes.info:PeerCall server.routes.peers:PeerCall",
    # files of the user, and what the command line prints
    "trusted folder": "project.trust:TrustedWorkspace permissions.trust:TrustedWorkspace permissions.trust:Trusted",
    "theme": "tui.theme:StoredPreferences tui.theme:_StoredTheme tui.theme:_Kept tui.looks:_Kept",
    "folder choices": "tui.theme:FolderChoices",
    "event log": "tracing.event_log:_StoredEventLog tracing.event_log:_Stored",
    "event log, dropped": "tracing.event_log:DroppedRecords tracing.event_log:Dropped",
    "event log, record": "tracing.records:AgentEvent tracing.event_record:AgentEvent tracing.agent_event:AgentEvent",
    "run output, info": "cli.commands.run_output:RunInfo cli.run.result:Begun",
    "run output, refused call": (
        "cli.commands.run_output:RefusedCall cli.commands.run_output:Refused cli.run.result:Refused"
    ),
    "config": "config.file:ConfigFile app.config.tables:ConfigFile",
    "config, provider": "config.file:ProviderTable app.config.tables:ProviderTable",
    "config, rules": "config.file:RulesTable app.config.tables:RulesTable",
    "config, limits": "config.file:LimitsTable app.config.tables:LimitsTable",
    "config, agent": "config.file:AgentTable app.config.tables:AgentTable",
    "config, compaction": "config.file:CompactionTable app.config.tables:CompactionTable",
    "config, recording": "config.file:RecordingTable",
    "config, retention": "config.file:RetentionTable app.config.tables:RetentionTable",
    "config, sandbox": "config.file:SandboxTable app.config.tables:SandboxTable",
    "config, egress": "config.file:EgressTable",
    "config, egress budget": "config.file:BudgetTable",
    "origin of a part": "types.origins:Origin",
    "data flow": "types.origins:DataFlow",
    "config, bounds": "config.file:BoundsTable app.config.tables:BoundsTable",
    "config, background": "config.file:BackgroundTable app.config.tables:BackgroundTable",
    "config, webhook": "config.file:WebhookTable",
    "webhook of the server": "server.webhooks:ServerWebhook",
    "turn notice": "server.webhooks:TurnNotice",
    "config, model facts": "providers.models_dev:ModelFacts providers.catalog:ModelFacts "
    "providers.catalog.facts:ModelFacts",
    # evaluations
    "evaluation run": "evals.results:EvalRun",
    "evaluation attempt": "evals.results:EvalAttempt",
    "evaluation check result": "evals.cases:CheckResult",
    "evaluation variant": "evals.cases:EvalVariant",
    "evaluation suite file": "evals.cases:_SuiteTable",
    "evaluation case file": "evals.cases:_CaseTable",
    "evaluation matrix": "evals.cases:EvalMatrix",
    "evaluation policy": "evals.cases:EvalPolicy",
    "evaluation reference": "evals.cases:EvalReference",
}
WORDS: dict[str, str] = {
    "tool phase": "types.tool_state:ToolPhase",
    "tool error reason": "types.tool_state:ToolErrorReason",
    "role": "types.messages:Role",
    "mode": "types.agents:Mode",
    "provider kind": "types.agents:ProviderKind",
    "reasoning effort": "types.request:ReasoningEffort",
    "finish reason": "types.request:FinishReason types.deltas:FinishReason types.stream:FinishReason",
    "part kind of a delta": "types.request:PartKind types.deltas:PartKind types.stream:PartKind",
    "delivery": "sessions.records:Delivery",
    "approval answer": "sessions.records:ApprovalAnswer",
    "approval scope": "sessions.records:ApprovalScope",
    "run state": "background.records:RunState background.runs:RunState",
    "termination reason": "agents.turn_state:TerminationReason agents.ends:TerminationReason",
}
VALUES: dict[str, str] = {
    "metadata of a part: repeatable": "types.tool_state:REPEATABLE",
    "metadata of a part: asks": "types.tool_state:ASKS",
    "metadata of a part: display": "types.tool_state:DISPLAY",
    "metadata of a part: left open": "types.tool_state:LEFT_OPEN",
    "metadata of a message: paused": "agents.turn_state:PAUSED agents.ends:PAUSED",
    "metadata of a message: note": "agents.turn_state:NOTE agents.ends:NOTE",
    "metadata of a message: plan answer": (
        "types.messages:PLAN_ANSWER engine.plans:ANSWER_KEY "
        "engine.plans:PLAN_ANSWER engine.plans:ANSWER app.inputs.plans:ANSWER"
    ),
    "metadata of a session: worktree": (
        "background.worktrees:METADATA_KEY "
        "background.worktrees:WORKTREE_KEY "
        "background.worktrees:KEY "
        "background.worktrees.ground:KEY"
    ),
    "abort in an inbox": "engine.inbox:ABORT_KEY engine.abort:ABORT_KEY engine.abort:ABORT app.inputs.aborts:ABORT",
    "output of a silent tool": "types.tool_state:NO_OUTPUT",
    "session format": "sessions.session:FORMAT_VERSION sessions.session:FORMAT",
    "export version": "sessions.export:EXPORT_VERSION sessions.export:VERSION sessions.transfer.exports:VERSION",
    "cassette version": (
        "providers.cassettes.cassette:CASSETTE_VERSION "
        "providers.cassettes.cassette:FORMAT_VERSION "
        "providers.cassettes.cassette:VERSION"
    ),
    "snapshot database version": (
        "sessions.snapshots.scanner:SCHEMA_VERSION "
        "sessions.snapshots.database:SCHEMA_VERSION sessions.snapshots.database:VERSION"
    ),
    "sqlite application id": (
        "sessions.sqlite.connection:APPLICATION_ID sessions.sqlite.schema:APPLICATION_ID "
        "sessions.sqlite.tables.schema:APPLICATION_ID"
    ),
    "run output version": (
        "cli.commands.run_output:OUTPUT_VERSION cli.commands.run_output:VERSION cli.run.result:VERSION"
    ),
    "undo folder": "engine.undo:UNDO_FOLDER engine.undo:FOLDER app.undo.places:FOLDER",
    "worktrees folder": "project.sandbox:WORKTREES_FOLDER project.sandbox:FOLDER app.workspace.worktrees:FOLDER",
    "blob mark": (
        "sessions.rows.codec:_BLOB_PREFIX sessions.rows.codec:_MARK sessions.rows.rows:_MARK sessions.rows.blobs:_MARK"
    ),
    "blob size": "sessions.rows.codec:BLOB_BYTES sessions.rows.rows:BLOB_BYTES sessions.rows.blobs:BLOB_BYTES",
    "dbos workflow": "background.database:WORKFLOW_NAME",
    "dbos application": "background.database:APPLICATION_NAME background.database:NAME",
    "dbos schema": "background.database:SCHEMA",
    "dbos queue": "background.records:RUN_QUEUE_NAME background.database:QUEUE",
    "dbos application version": "background.database:WORKFLOW_VERSION background.database:VERSION",
}
OTHERS: dict[str, str] = {
    "deltas": "types.request:Delta types.deltas:Delta types.stream:Delta",
    "stored parts": "types.parts:Part",
    "sources": "types.parts:Source",
    "prompt of a model": "types.parts:ModelPart",
    "tools that rules name": "types.tool_declaration:KNOWN_NAMES permissions.modes:TOOLS permissions.tools:TOOLS",
    "app folders": "config.paths:find_app_folders config.paths:find_folders app.config.folders:find_folders",
    "queue of a worker": "background.database:worker_queue",
    "queue after a run": "background.database:DEPENDENT_PREFIX",
    "serializer": "background.database:JsonSerializer",
    "background database": "background.database:RunDatabase background.database:Database",
    "snapshot database": (
        "sessions.snapshots.scanner:SnapshotDatabase "
        "sessions.snapshots.database:SnapshotDatabase sessions.snapshots.database:Database"
    ),
    "sqlite store": "stores:SqliteStore sessions.sqlite.store:SqliteStore sessions.sqlite_store:SqliteStore",
    "postgres migrations": "sessions.postgres.schema:MIGRATIONS",
    "openapi": "server.openapi:build_openapi server.openapi:describe",
    "endpoints": "server.app:ENDPOINTS",
    "prompt files": "context.prompts:__path__",
    "change frame": "server.event_stream:change_frame server.feeds.frames:change_frame",
    "live frame": "server.event_stream:live_frame server.feeds.frames:live_frame",
}

MAKES_TABLES = ("migrate", "prepare")  # a method of the background database

FILE = Path(__file__).with_name("stored_names.json")
for table in (name for name in vars(file) if name.endswith("Table")):  # of the configuration
    if not any(places.startswith(f"config.file:{table}") for places in STRUCTS.values()):
        topic = re.sub(r"(?<!^)([A-Z])", r" \1", table.removesuffix("Table")).lower()
        STRUCTS[f"config, {topic}"] = f"config.file:{table}"


def at(places: str) -> Any:
    """What `module:name` names, at the first of several places that exists."""
    for place in places.split():
        module, _, name = place.partition(":")
        try:
            return getattr(import_module(f"outrider.{module}"), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise LookupError(f"none of these exists; was it renamed? {places}")


def each(places: str, compute: Callable[[Any], Any]) -> Any:
    """As `at`, for one entry of many: what cannot be found is named in its place, so that one run shows all."""
    try:
        return compute(at(places))
    except LookupError as error:
        return str(error)


# ------------------------------------------------------------------------------------------------ what is computed


def shape(kind: Any) -> dict[str, Any]:
    """The encoded fields of a struct, and the tag that distinguishes it from others."""
    config = kind.__struct_config__
    found: dict[str, Any] = {"fields": list(kind.__struct_encode_fields__)}
    if config.tag is not None:
        found |= {"tag": config.tag, "tag field": config.tag_field}
    if config.array_like:
        found["array"] = True
    return found


def by_tag(kinds: Any) -> dict[str, Any]:
    return {str(kind.__struct_config__.tag): shape(kind) for kind in kinds}


def all_structs() -> Any:
    return {label: each(places, shape) for label, places in STRUCTS.items()}


def all_events() -> Any:
    return by_tag(events.EVENT_TYPES.values())


def event_types() -> Any:
    """Returns the tags by which events are decoded, and the `type` of each event class."""
    return {name: kind.__struct_config__.tag for name, kind in events.EVENT_TYPES.items()}


def deltas() -> Any:
    return by_tag(get_args(at(OTHERS["deltas"])))


def parts() -> Any:
    kinds = {*get_args(at(OTHERS["stored parts"])), *get_args(at(OTHERS["prompt of a model"]))}
    return dict(sorted(by_tag(kinds).items()))


def part_kinds() -> Any:
    """The kinds that are read, without those that a program registered."""
    own = [kind for kind in outrider.part_types().values() if kind.__module__.startswith("outrider.")]
    return sorted(kind.type for kind in own)


def tool_states() -> Any:
    return by_tag(get_args(outrider.ToolState))


def sources() -> Any:
    return by_tag(get_args(at(OTHERS["sources"])))


def error_names() -> Any:
    """Errors are stored and sent by the names of their classes and found again by them; with their base classes."""
    found = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    own = {name: kind for name, kind in found.items() if issubclass(kind, Exception)}
    above = {name: [one.__name__ for one in kind.__mro__[1:] if one in own.values()] for name, kind in own.items()}
    return {name: {"class name": own[name].__name__, "is a": sorted(above[name])} for name in sorted(own)}


def words() -> Any:
    return {label: each(places, lambda kind: list(get_args(kind))) for label, places in WORDS.items()}


def values() -> Any:
    return {label: each(places, lambda value: value) for label, places in VALUES.items()}


def files_of_the_user() -> Any:
    folders = at(OTHERS["app folders"])({"HOME": "/h", "OUTRIDER_HOME": "/o"})
    found = (getattr(folders, name) for name in dir(folders) if not name.startswith("_"))
    return sorted({str(one.relative_to("/o")) for one in found if isinstance(one, Path) and one.is_relative_to("/o")})


def prompt_files() -> Any:
    """A file of this name in the user's `prompts` folder takes the place of ours."""
    return sorted(path.name for folder in at(OTHERS["prompt files"]) for path in Path(folder).glob("*.md"))


def tools_in_rules() -> Any:
    return sorted(at(OTHERS["tools that rules name"]))


def tables_in(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name in names}


def sqlite_tables(folder: Path) -> Any:
    at(OTHERS["sqlite store"])(folder / "sessions.db")
    found = tables_in(folder / "sessions.db")
    return {name: columns for name, columns in found.items() if not re.match(r"(titles|words)_", name)}


def snapshot_tables(folder: Path) -> Any:
    at(OTHERS["snapshot database"])(folder / "undo" / "snapshots.db").close()
    found = tables_in(folder / "undo" / "snapshots.db")
    return {name: columns for name, columns in found.items() if not name.startswith("sqlite_")}


def background_tables(folder: Path) -> Any:
    """Ours; the others belong to DBOS."""
    database = at(OTHERS["background database"])(f"sqlite:///{folder / 'runs.sqlite'}")
    getattr(database, next(name for name in MAKES_TABLES if hasattr(database, name)))()
    database.close()
    return {
        name: columns for name, columns in tables_in(folder / "runs.sqlite").items() if name.startswith("outrider_")
    }


def postgres_tables() -> Any:
    found: dict[str, list[str]] = {}
    for migration in at(OTHERS["postgres migrations"]):
        for name, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n?\)(?:;\n|\s*$)", migration, re.DOTALL):
            columns = re.split(r",\s*(?![^(]*\))", body.strip())
            found[name] = [one.split()[0] for one in columns if not one.startswith(("UNIQUE", "PRIMARY"))]
    return dict(sorted(found.items()))


def dbos_names() -> Any:
    return {
        "queue of a worker": at(OTHERS["queue of a worker"])("ID"),
        "queue after a run": at(OTHERS["queue after a run"]) + "ID",
        "serializer": at(OTHERS["serializer"])().name(),
        "an error that ended a workflow": json.loads(at(OTHERS["serializer"])().serialize(errors.ToolFailure("words"))),
    }


def frames() -> Any:
    """The events of a followed session, as bytes."""
    change = at(STRUCTS["change, deleted"])(7)
    event = events.ErrorEvent(error_type="x", message="y", timestamp=1)
    return [at(OTHERS["change frame"])(change).body.decode(), at(OTHERS["live frame"])([event]).body.decode()]


@cache
def description() -> dict[str, Any]:
    return at(OTHERS["openapi"])(at(OTHERS["endpoints"]), "0")


TEXT = {"type": "string"}  # what event streams are


def routes() -> Any:
    found = {}
    for path, operations in description()["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {})
            given = [
                content
                for status, one in operation["responses"].items()
                if status < "300"
                for content in [one.get("content", {})]
            ]
            found[f"{method.upper()} {path}"] = {
                "name": operation["operationId"],
                "parameters": [f"{one['in']} {one['name']}" for one in operation["parameters"]],
                "body": {kind: plain(one["schema"]) for kind, one in body.items()},
                "gives": {kind: plain(one.get("schema", TEXT)) for content in given for kind, one in content.items()},
            }  # fmt: skip
    return dict(sorted(found.items()))


def plain(schema: Any, inside: tuple[str, ...] = ()) -> Any:
    """A schema with references replaced by what they name: the names of classes do not count, fields do."""
    if isinstance(schema, list):
        return [plain(one, inside) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "(again)" if name in inside else plain(description()["components"]["schemas"][name], (*inside, name))
    if "properties" in schema:
        needed = schema.get("required", ())
        return {
            name + ("" if name in needed else "?"): plain(one, inside) for name, one in schema["properties"].items()
        }
    fields = ("anyOf", "enum", "items", "prefixItems", "const", "type", "format", "additionalProperties")
    return {name: plain(schema[name], inside) for name in fields if name in schema}


def lines(every: dict[str, Any]) -> str:
    """JSON with one entry on each line."""
    sections = []
    for about, entries in every.items():
        pairs = entries.items() if isinstance(entries, dict) else ((None, one) for one in entries)
        rows = [("" if name is None else f"{json.dumps(name)}: ") + json.dumps(value) for name, value in pairs]
        start, end = "{}" if isinstance(entries, dict) else "[]"
        sections.append(f'"{about}": {start}\n ' + ",\n ".join(rows) + f"\n{end}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


IN_MEMORY: dict[str, Callable[[], Any]] = {
    "structs": all_structs,
    "events": all_events,
    "event types": event_types,
    "deltas": deltas,
    "parts": parts,
    "part kinds": part_kinds,
    "tool states": tool_states,
    "sources": sources,
    "errors": error_names,
    "words": words,
    "values": values,
    "files of the user": files_of_the_user,
    "prompt files": prompt_files,
    "tools in rules": tools_in_rules,
    "postgres tables": postgres_tables,
    "dbos": dbos_names,
    "frames": frames,
    "routes": routes,
}
ON_DISK: dict[str, Callable[[Path], Any]] = {
    "sqlite tables": sqlite_tables,
    "snapshot tables": snapshot_tables,
    "background tables": background_tables,
}
NEEDS = {
    "dbos": "dbos",
    "background tables": "dbos",
    "routes": "starlette",
    "frames": "starlette",
    "postgres tables": "psycopg",
}


def all_lines() -> str:
    """The content of the file for the code as it is now."""
    with tempfile.TemporaryDirectory() as scratch:
        every = {about: compute() for about, compute in IN_MEMORY.items()}
        every |= {about: compute(Path(scratch)) for about, compute in ON_DISK.items()}
    return lines(every)


def pinned(about: str) -> Any:
    for package in [NEEDS[about]] if about in NEEDS else []:
        pytest.importorskip(package)
    return json.loads(FILE.read_bytes())[about]


@pytest.mark.parametrize("about", sorted(IN_MEMORY))
def test_names_that_are_stored_or_sent_are_those_of_version_0_1(about: str):
    expected = pinned(about)
    found = json.loads(json.dumps(IN_MEMORY[about]()))
    if isinstance(expected, dict):
        changed = {name: (expected[name], found.get(name)) for name in expected if found.get(name) != expected[name]}
        assert not changed, f"{about}: what was stored, and what would be stored now"
    assert found == expected, "`make names` adds new names"


@pytest.mark.parametrize("about", sorted(ON_DISK))
def test_tables_and_columns_are_those_of_version_0_1(about: str, tmp_path: Path):
    expected = pinned(about)
    assert ON_DISK[about](tmp_path) == expected


def test_the_file_is_what_make_names_writes():
    """Otherwise the names of the next change would be among changes of the order."""
    for package in set(NEEDS.values()):
        pytest.importorskip(package)
    assert FILE.read_text(encoding="utf-8") == all_lines()


def test_every_tag_is_explicit_and_not_derived_from_the_name_of_a_class():
    """`tag=True` makes the class name the tag; renaming the class would then change what is stored."""
    kinds = [*events.EVENT_TYPES.values(), *get_args(at(OTHERS["deltas"]))]
    implicit = [kind for kind in kinds if f'tag="{kind.__struct_config__.tag}"' not in inspect.getsource(kind)]
    assert not implicit


def test_a_struct_that_was_renamed_is_written_as_before():
    """Fields are compared by their encoded names, so `rename=` would be noticed."""
    attachment = at(STRUCTS["attachment"])
    assert msgspec.to_builtins(attachment("text/plain", url="x")) == {
        "mime_type": "text/plain", "data": None, "url": "x", "name": None,
    }  # fmt: skip


def find() -> None:
    """For each struct that is no longer at its place: those that have exactly its fields and tag."""
    for module in pkgutil.walk_packages(outrider.__path__, "outrider."):
        with suppress(Exception):
            import_module(module.name)
    kinds, waiting = set[Any](), [msgspec.Struct]
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        kinds.update(below)
    own = sorted((kind for kind in kinds if kind.__module__.startswith("outrider.")), key=str)
    for label, expected in json.loads(FILE.read_bytes())["structs"].items():
        if isinstance(each(STRUCTS[label], shape), str):
            alike = [
                f"{kind.__module__.removeprefix('outrider.')}:{kind.__name__}"
                for kind in own
                if shape(kind) == expected
            ]
            sys.stdout.write(f"{label}: was {STRUCTS[label].split()[-1]}, perhaps now {' or '.join(alike) or 'gone'}\n")


if __name__ == "__main__" and sys.argv[1:] == ["find"]:
    find()
elif __name__ == "__main__" and sys.argv[1:] == ["write"]:
    FILE.write_text(all_lines(), encoding="utf-8")
