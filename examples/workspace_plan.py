"""An agent in a folder: it plans without changing anything, works after the plan is accepted, and is undone."""

import asyncio
import tempfile
from pathlib import Path

from outrider import Agent, Provider
from outrider.workspace import ApprovalRequest, Workspace

SCRIPT = [
    {"tool": "read", "input": {"file_path": "notes.txt"}},
    "# Plan\n1. Replace `teh` by `the` in notes.txt.",
    {"tool": "shell", "input": {"command": "sed -i s/teh/the/ notes.txt"}},
    "Done.",
]


def approve(request: ApprovalRequest) -> bool:
    print(f"question: {request.tool} {request.input}")
    return True


async def correct(folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("teh end\n")
    model = Provider("demo", kind="scripted", options={"script": SCRIPT})
    agent = Agent("editor", "You correct texts.", model="demo", provider="demo")
    async with Workspace(folder, agent, [model], approve=approve) as workspace:
        await workspace.prompt("Correct the spelling.", mode="plan")
        plan = await workspace.plan()
        print(f"plan: {plan.text if plan else None}")
        await workspace.accept_plan()
        print("after:", notes.read_text().strip())
        await workspace.undo()
        print("undone:", notes.read_text().strip())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(correct(Path(name)))
