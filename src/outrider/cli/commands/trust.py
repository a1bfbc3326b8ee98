"""Trust in a folder: what it would bring along is shown before anything counts."""

from argparse import Namespace
from pathlib import Path

from outrider.cli import registry as exits
from outrider.cli.commands.sessions import sure
from outrider.cli.output import Console
from outrider.cli.setup import folders
from outrider.project.trust import WorkspaceTrust, find_project

LINES = 30


def trust(arguments: Namespace) -> int:
    console, found = Console(), _of(arguments)
    shown = found.items()
    if not shown:
        console.say(f"{found.project.root} brings nothing along that would need trust.")
    for item in shown:
        console.print(f"{item.kind} {item.name}", "bold")
        for line in item.content.splitlines()[:LINES]:
            console.print(f"  {line}")
        if item.executable:
            console.print("  this runs a program or visits an address as soon as a session begins", "yellow")
    if not sure(f"Trust {found.project.root} and let all of this count?", yes=arguments.yes):
        return exits.FAILED
    found.trust(shown)
    console.say(f"trusted: {found.project.root}")
    return exits.DONE


def distrust(arguments: Namespace) -> int:
    found = _of(arguments)
    found.distrust()
    Console().say(f"no longer trusted: {found.project.root}")
    return exits.DONE


def _of(arguments: Namespace) -> WorkspaceTrust:
    place = folders()
    return WorkspaceTrust(find_project(arguments.folder or Path.cwd(), place.home), place.trust)
