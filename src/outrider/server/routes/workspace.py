"""Endpoints for the files of a workspace: search, folders, contents, commands, changes, undo and commits."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from outrider.engine.frontend import denying_rule, match_names, workspace_files
from outrider.engine.review import ChangeReview, GitCommit, commit_files, review_changes, undo_part
from outrider.engine.undo_history import RestoreResult
from outrider.engine.workspace_browser import (
    FileView,
    FolderChoice,
    FolderListing,
    list_folder_choices,
    list_workspace_folder,
    read_workspace_file,
)
from outrider.errors import ToolFailure
from outrider.presentation.item_views import restore_notice
from outrider.presentation.items import Notice
from outrider.project.extensions import USER_ORIGIN, CustomCommand, find_custom_commands
from outrider.server.endpoint import ApiEndpoint, NoPayload, PageLimit, RouteRequest
from outrider.server.routes.sessions import SESSION_PATH, choose_workspace
from outrider.server.users import AccessDeniedError


class WorkspaceQuery(msgspec.Struct, frozen=True):
    """`query` are letters of a path in their order."""

    query: str = ""
    limit: PageLimit = 20


async def find_workspace_files(request: RouteRequest[WorkspaceQuery, NoPayload]) -> list[str]:
    session = await request.engine.store.get(request.path["session_id"])
    is_limited = request.engine.runtime.find_limits(session) is not None
    names = await workspace_files(Path(session.workspace_directory), exact=is_limited)
    return match_names(request.query.query, names, request.query.limit)


class CustomCommandInfo(msgspec.Struct, frozen=True):
    """A command from a Markdown file: its text is a prompt. `hint` describes its argument, `origin` is the file."""

    name: str
    description: str
    hint: str
    origin: str


class CustomCommandCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    argument: Annotated[str, msgspec.Meta(max_length=1_000_000)] = ""


class CustomCommandText(msgspec.Struct, frozen=True):
    """The prompt of a command with its argument."""

    text: str


async def list_custom_commands(request: RouteRequest[NoPayload, NoPayload]) -> list[CustomCommandInfo]:
    commands = await _find_commands(request)
    return [CustomCommandInfo(command.name, command.description, command.hint, command.origin) for command in commands]


async def expand_custom_command(request: RouteRequest[NoPayload, CustomCommandCall]) -> CustomCommandText:
    name = request.body.name
    command = next((command for command in await _find_commands(request) if command.name == name), None)
    if command is None:
        raise LookupError(f"there is no command {name!r}")
    return CustomCommandText(command.expand(request.body.argument).rstrip())


async def _find_commands(request: RouteRequest[NoPayload, Any]) -> tuple[CustomCommand, ...]:
    """Returns the commands of the session's folder, if it is trusted; administrators also get those of the server's
    user."""
    session = await request.engine.store.get(request.path["session_id"])
    extensions = request.engine.runtime.workspace_extensions
    if extensions is None or request.settings is None:
        return ()
    trust, folders = extensions.workspace_trust(Path(session.workspace_directory)), request.settings.folders
    commands = await asyncio.to_thread(
        find_custom_commands, trust.project, folders.commands_folder, folders.home, trusted=trust.trusted
    )
    return tuple(command for command in commands if request.requester.is_admin or command.origin != USER_ORIGIN)


class FolderQuery(msgspec.Struct, frozen=True):
    """A folder below the workspace; empty for the workspace itself."""

    path: str = ""


class FileQuery(msgspec.Struct, frozen=True):
    """A file of the workspace, from line `first` on."""

    path: str
    first: Annotated[int, msgspec.Meta(ge=1, le=2**53)] = 1


class FolderChoiceQuery(msgspec.Struct, frozen=True):
    """A folder of the server's machine; empty for the home folder."""

    path: str = ""


async def list_folder(request: RouteRequest[FolderQuery, NoPayload]) -> FolderListing:
    return await list_workspace_folder(request.engine, request.path["session_id"], request.query.path)


async def read_file(request: RouteRequest[FileQuery, NoPayload]) -> FileView:
    query = request.query
    return await read_workspace_file(request.engine, request.path["session_id"], query.path, query.first)


async def list_folders(request: RouteRequest[FolderChoiceQuery, NoPayload]) -> FolderChoice:
    """Lists folders. Users who are not administrators get those below the folder that their sessions stay in; viewers,
    who create no sessions, get none."""
    if request.requester.role == "viewer":
        raise AccessDeniedError("viewers choose no folder")
    if request.requester.is_admin:
        return await list_folder_choices(request.query.path)
    return await list_folder_choices(await choose_workspace(request, request.query.path) or "")


class RestoreQuery(msgspec.Struct, frozen=True):
    """`to` is a message or call id: everything from there on is undone; without it, the last turn."""

    direction: Literal["undo", "redo"] = "undo"
    to: str | None = None


class RestoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `doubtful`, files that may have been changed by something other than an agent are restored as well."""

    direction: Literal["undo", "redo"]
    to: str | None = None
    doubtful: bool = False


async def preview_restore(request: RouteRequest[RestoreQuery, NoPayload]) -> RestoreResult:
    changes = request.engine.file_changes(request.path["session_id"])
    return await changes.preview(request.query.direction, to=request.query.to)


class RestoreOutcome(RestoreResult, frozen=True, kw_only=True):
    """The result of an undo or redo; `notice` is what to show of it."""

    notice: Notice


async def restore_files(request: RouteRequest[NoPayload, RestoreRequest]) -> RestoreOutcome:
    changes, body = request.engine.file_changes(request.path["session_id"]), request.body
    if body.direction == "undo":
        return _add_notice(await changes.undo(body.to, doubtful=body.doubtful))
    return _add_notice(await changes.redo(doubtful=body.doubtful))


def _add_notice(result: RestoreResult) -> RestoreOutcome:
    notice = restore_notice(result.actions, uncovered=result.uncovered, off=result.off)
    return RestoreOutcome(**msgspec.structs.asdict(result), notice=notice)


class ReviewQuery(msgspec.Struct, frozen=True):
    """`turn` is the message that begins a turn; without it, the whole session."""

    turn: str | None = None


class PartialUndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the review and, with `hunk`, one of its hunks."""

    path: str
    hunk: str = ""
    turn: str | None = None


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    message: Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
    paths: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=500)]


async def review_session(request: RouteRequest[ReviewQuery, NoPayload]) -> ChangeReview:
    review = await review_changes(request.engine, request.path["session_id"], request.query.turn)
    return request.engine.redact(review)


async def undo_reviewed_part(request: RouteRequest[NoPayload, PartialUndoRequest]) -> RestoreOutcome:
    body, session_id = request.body, request.path["session_id"]
    return _add_notice(await undo_part(request.engine, session_id, body.path, hunk=body.hunk, turn=body.turn))


async def commit_reviewed_files(request: RouteRequest[NoPayload, CommitRequest]) -> GitCommit:
    session_id, body = request.path["session_id"], request.body
    if rule := await denying_rule(request.engine, session_id, "git commit"):
        raise ToolFailure(f"a deny rule of the server matches git commit: {rule}")
    return await commit_files(request.engine, session_id, body.paths, body.message)


FILE_ROUTES = (
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/workspace", name="find_files",
                summary="Find files of the workspace by letters of their paths", handler=find_workspace_files,
                query=WorkspaceQuery, response_type=list[str]),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/custom-commands", name="list_custom_commands",
                summary="List the commands of the user and of the workspace", handler=list_custom_commands,
                response_type=list[CustomCommandInfo]),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/custom-commands", name="expand_custom_command",
                summary="Get the prompt of a command", handler=expand_custom_command, body=CustomCommandCall,
                response_type=CustomCommandText),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/tree", name="list_folder",
                summary="List a folder of the workspace", handler=list_folder, query=FolderQuery,
                response_type=FolderListing),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/file", name="read_file", summary="Read a file of the workspace",
                handler=read_file, query=FileQuery, response_type=FileView),
    ApiEndpoint(method="GET", path="/api/folders", name="list_folders",
                summary="List folders of the server's machine, to choose a workspace", handler=list_folders,
                query=FolderChoiceQuery, response_type=FolderChoice),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/files", name="look_at_files", summary="Preview an undo or redo",
                handler=preview_restore, query=RestoreQuery, response_type=RestoreResult),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/files", name="restore_files", summary="Undo or redo file changes",
                handler=restore_files, body=RestoreRequest, response_type=RestoreOutcome),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/review", name="review_session",
                summary="Get the changes of a session or turn by file and hunk", handler=review_session,
                query=ReviewQuery, response_type=ChangeReview),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/review/undo", name="undo_reviewed_part",
                summary="Undo the changes of one file, or one hunk", handler=undo_reviewed_part,
                body=PartialUndoRequest, response_type=RestoreOutcome),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/review/commit", name="commit_reviewed_files",
                summary="Commit files of the workspace with git", handler=commit_reviewed_files, body=CommitRequest,
                response_type=GitCommit, status=201),
)  # fmt: skip
