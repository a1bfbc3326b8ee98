"""Creates the screenshots of the documentation: the real application with a scripted model, exported as SVG.

python scripts/screens.py [FOLDER]      default: docs/screens
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from textual.pilot import Pilot

from outrider.config.paths import AppFolders
from outrider.config.settings import Settings, read_settings
from outrider.tui.app import OutriderApp
from outrider.tui.dialogs import DialogQueue
from outrider.tui.startup import StartOptions, engine_opener
from outrider.types.agents import Agent, Provider

ROOT = Path(__file__).parents[1]
WIDE, TALL, NARROW = (112, 34), (112, 46), (40, 30)

# A picture must not load fonts from the network; a font that is not installed is substituted.
_FONTS = re.compile(r",\s*url\(\"https:[^)]*\) format\(\"woff2?\"\)")

CART = """class Cart:
    def __init__(self):
        self.items = []

    def total(self):
        return sum(self.items)
"""
TEST = """from cart import Cart, Item


def test_total_adds_up_prices():
    cart = Cart()
    cart.items = [Item(2), Item(3)]
    assert cart.total() == 5
"""
FIX = {
    "file_path": "cart.py",
    "old_string": "        return sum(self.items)",
    "new_string": "        return sum(item.price for item in self.items)",
}
TODOS = [
    {"content": "Find out why the test fails", "status": "completed"},
    {"content": "Add up prices, not items", "status": "in_progress"},
    {"content": "Ask the reviewer", "status": "pending"},
]
ANSWER = """The test fails because `Cart.total` adds up **items**, which are no numbers.

1. `sum(self.items)` wants numbers and gets `Item`s.
2. Every `Item` has a `price`, so the sum should go over prices:

```python
def total(self):
    return sum(item.price for item in self.items)
```

| file | what changes |
|---|---|
| `cart.py` | one line in `total` |
"""
PLAN = """Two steps, nothing else changes:

1. In `cart.py`, let `total` add up `item.price`.
2. Run `tests/test_cart.py`.
"""


def call(tool: str, **given: Any) -> dict[str, Any]:
    return {"tool": tool, "input": given}


LOOK = [
    {"reasoning": "The test is about totals. I look at it and at the code first."},
    "I'll look at the test and at what it covers.",
    call("read", file_path="tests/test_cart.py"),
    call("grep", pattern="def total", path="."),
    call("todo", todos=TODOS),
]
RUN = [call("shell", command="grep -n sum cart.py; wc -l cart.py tests/*", description="See how large it is")]
EDIT = [call("read", file_path="cart.py")], [call("edit", **FIX)]
SERVE = [call("shell", command="sleep 300", description="Start the server", background=True)]
DELEGATE = [call("call_agent", agent_name="reviewer", message="Is the change to Cart.total right?")]

Act = Callable[[Pilot[int]], Awaitable[None]]


async def nothing(pilot: Pilot[int]) -> None:
    await ready(pilot)
    await pilot.pause(0.5)


async def ready(pilot: Pilot[int]) -> None:
    """Wait until the engine is open."""
    app = pilot.app
    assert isinstance(app, OutriderApp)
    while app.ui.open_controller is None:
        await pilot.pause(0.1)


async def settle(pilot: Pilot[int], limit: float = 20.0) -> None:
    """Waits until the turn has ended or asks a question, up to a limit."""
    app = pilot.app
    assert isinstance(app, OutriderApp)
    end = monotonic() + limit
    while monotonic() < end and not app.ui.find_widget(DialogQueue).is_open:
        controller = app.ui.open_controller
        if controller is not None and controller.conversation.items and not controller.conversation.activity.busy:
            break
        await pilot.pause(0.1)
    await pilot.pause(0.3)


def saying(text: str, seconds: float = 2.5, *after: str) -> Act:
    async def act(pilot: Pilot[int]) -> None:
        await ready(pilot)
        await pilot.press(*text, "enter")
        await pilot.pause(seconds)
        await settle(pilot)
        for key in after:
            await pilot.press(key)
            await pilot.pause(0.3)

    return act


async def draw(name: str, folder: Path, script: Any, act: Act, **how: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        workspace = Path(place) / "shop"
        (workspace / "tests").mkdir(parents=True)
        (workspace / "cart.py").write_text(CART)
        (workspace / "tests" / "test_cart.py").write_text(TEST)
        async with AsyncExitStack() as stack:
            app = OutriderApp(
                StartOptions(lambda: settings(Path(place), workspace, script, **how)), engine_opener(stack)
            )
            if how.get("light"):
                app.theme = "outrider-light"
            async with app.run_test(size=how.get("size", WIDE)) as pilot:
                await pilot.pause(0.8)
                await act(pilot)
                await pilot.pause(0.3)
                drawn = _FONTS.sub("", app.export_screenshot(title="outrider"))
                (folder / f"{name}.svg").write_text(drawn, encoding="utf-8")


def settings(
    place: Path, workspace: Path, script: Any, *, mode: str = "agent", missing: bool = False, **_: Any
) -> Settings:
    found = read_settings(cwd=workspace, environ={"OUTRIDER_HOME": str(place / "home"), "HOME": str(place)})
    if missing:
        return found
    provider = Provider("anthropic", "scripted", options={"script": script, "delay": 0.002})
    reviewer = Agent("reviewer", "You review.", "claude-sonnet-4-6", "anthropic", role="reviews changes")
    leader = msgspec.structs.replace(found.agents[0], model="claude-sonnet-4-6", provider="anthropic", mode=mode)
    folders = AppFolders(place / "home", place / "home", place)
    return msgspec.structs.replace(
        found, folders=folders, agents=(leader, reviewer), providers=(provider,), mode=mode, missing=""
    )


async def waiting(pilot: Pilot[int]) -> None:
    app = pilot.app
    assert isinstance(app, OutriderApp)
    while not app.ui.find_widget(DialogQueue).is_open:
        await pilot.pause(0.1)
    await pilot.pause(1.0)


def slowly(answers: list[Any]) -> Callable[[Any], Any]:
    """Returns the answers of the first agent in order; the reviewer does not end while the screenshot is taken."""
    left = list(answers)

    def answer(request: Any) -> Any:
        if "You review." in (request.system or ""):
            return [asyncio.Event(), "unheard"]
        return left.pop(0) if left else "Done."

    return answer


async def main(folder: Path) -> None:
    fix = "Why does the test of the cart fail?"
    await draw("welcome", folder, [], nothing)
    await draw("conversation", folder, [LOOK, RUN, ANSWER], saying(fix, 3.0), size=TALL)
    await draw("conversation-light", folder, [LOOK, RUN, ANSWER], saying(fix, 3.0), size=TALL, light=True)
    await draw("approval", folder, [LOOK, *EDIT], saying("Mend the cart, please.", 2.5))
    await draw("plan", folder, [PLAN], saying("Plan how to mend the cart.", 2.0), mode="plan")
    await draw("beside", folder, slowly([LOOK, SERVE, DELEGATE]), saying("Mend it and let it be reviewed.", 3.0))
    await draw("commands", folder, [], typing("/"))
    await draw("setup", folder, [], waiting, missing=True)
    await draw("context", folder, [LOOK, RUN, ANSWER], saying(fix, 2.0, *"/context", "space", "enter"))
    await draw("narrow", folder, [LOOK, RUN, ANSWER], saying(fix, 3.0), size=NARROW)


def typing(text: str) -> Act:
    async def act(pilot: Pilot[int]) -> None:
        await ready(pilot)
        await pilot.press(*text)
        await pilot.pause(0.3)

    return act


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "screens"
    chosen.mkdir(parents=True, exist_ok=True)
    for drawn in chosen.glob("*.svg"):  # the folder also has the picture of the page
        drawn.unlink()
    asyncio.run(main(chosen))
    sys.stdout.write(f"{len(list(chosen.glob('*.svg')))} screens in {chosen}\n")
