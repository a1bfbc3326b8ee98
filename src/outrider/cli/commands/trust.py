"""`outrider trust` and `distrust`: show what a folder's files would configure before they take effect."""

from argparse import Namespace
from pathlib import Path

from outrider.cli import exit_codes
from outrider.cli.commands.sessions import confirm_action
from outrider.cli.output import Console
from outrider.cli.setup import user_folders
from outrider.project.trust import WorkspaceTrust, find_project

PREVIEW_LINES = 30


def trust_folder(arguments: Namespace) -> int:
    """Print the configuration items of a folder, ask for confirmation, and store the trust for exactly these items."""
    console, workspace_trust = Console(), _workspace_trust(arguments)
    items = workspace_trust.list_items()
    if not items:
        console.print_stderr(f"{workspace_trust.project.root} contains no configuration that needs trust.")
    for item in items:
        console.print(f"{item.kind} {item.name}", "bold")
        for line in item.content.splitlines()[:PREVIEW_LINES]:
            console.print(f"  {line}")
        if item.executable:
            console.print("  this starts a program or connects to an address when a session starts", "yellow")
    if not confirm_action(f"Trust {workspace_trust.project.root} and apply all of this?", yes=arguments.yes):
        return exit_codes.FAILURE
    workspace_trust.trust(items)
    console.print_stderr(f"trusted: {workspace_trust.project.root}")
    return exit_codes.SUCCESS


def distrust_folder(arguments: Namespace) -> int:
    workspace_trust = _workspace_trust(arguments)
    workspace_trust.revoke_trust()
    Console().print_stderr(f"no longer trusted: {workspace_trust.project.root}")
    return exit_codes.SUCCESS


def _workspace_trust(arguments: Namespace) -> WorkspaceTrust:
    folders = user_folders()
    return WorkspaceTrust(find_project(arguments.folder or Path.cwd(), folders.home), folders.trust_file)
