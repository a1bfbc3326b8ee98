"""The tools `edit`, `write` and `apply_patch`: each changes files within one transaction."""

from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.edit_transaction import FileEditor
from outrider.tools.tool import Tool, ToolContext, ToolResult
from outrider.types.tool_declaration import KNOWN_NAMES

EDIT_ALIASES = {
    "path": "file_path",
    "filePath": "file_path",
    "filename": "file_path",
    "old_str": "old_string",
    "oldString": "old_string",
    "new_str": "new_string",
    "newString": "new_string",
    "replaceAll": "replace_all",
}


def edit_tool(editor: FileEditor) -> Tool:
    async def edit(
        file_path: str,
        old_string: str,
        new_string: str,
        context: ToolContext,
        replace_all: bool = False,  # noqa: FBT001, FBT002
    ) -> ToolResult:
        from outrider.tools.edit_operations import apply_edit

        return await editor.apply_plan(
            context, lambda revisions: apply_edit(revisions, file_path, old_string, new_string, everywhere=replace_all)
        )

    return Tool(
        edit,
        description=load_prompt(__file__, "edit"),
        preprocess_args=argument_aliases(EDIT_ALIASES),
        path_parameters=("file_path",),
        path_operation="edit",
        previews=True,
    )


WRITE_ALIASES = {"path": "file_path", "filename": "file_path", "filePath": "file_path", "contents": "content"}


def write_tool(editor: FileEditor) -> Tool:
    async def write(file_path: str, content: str, context: ToolContext) -> ToolResult:
        from outrider.tools.edit_operations import write_file

        return await editor.apply_plan(context, lambda revisions: write_file(revisions, file_path, content))

    return Tool(
        write,
        description=load_prompt(__file__, "write"),
        preprocess_args=argument_aliases(WRITE_ALIASES),
        path_parameters=("file_path",),
        path_operation="write",
        previews=True,
    )


PATCH_ALIASES = {"input": "patch", "patchText": "patch", "patch_text": "patch", "diff": "patch"}


def apply_patch_tool(editor: FileEditor) -> Tool:
    async def apply_patch(patch: str, context: ToolContext) -> ToolResult:
        from outrider.tools.edit_operations import apply_patch_text

        return await editor.apply_plan(context, lambda revisions: apply_patch_text(revisions, patch))

    return Tool(
        apply_patch,
        description=load_prompt(__file__, "apply_patch"),
        preprocess_args=argument_aliases(PATCH_ALIASES),
        previews=True,
        declares=KNOWN_NAMES["apply_patch"],
    )
