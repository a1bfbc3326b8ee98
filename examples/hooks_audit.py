"""Hooks: one changes arguments before a call, one removes data from results, and a listener writes an audit log."""

from outrider import Agent, EventBus, HookedCall, Hooks, Provider, Tool, run
from outrider.events import ToolExecutionCompletedEvent


@Tool
def find_customer(name: str) -> str:
    """Return the record of a customer."""
    return f"{name}, card 4111-1111-1111-1111"


def before(call: HookedCall) -> dict[str, object] | str | None:
    """Return new arguments, None to leave them, or a reason that denies the call."""
    if call.input["name"] == "":
        return "a name is required"
    return {**call.input, "name": str(call.input["name"]).title()}


def after(call: HookedCall) -> str:
    """Return a new result, or None to leave it."""
    return call.output.replace("4111-1111-1111-1111", "(hidden)")


if __name__ == "__main__":
    bus = EventBus()
    bus.subscribe(ToolExecutionCompletedEvent, lambda event: print("audit:", event.tool_name, event.output_preview))
    script = [{"tool": "find_customer", "input": {"name": "ada"}}, "Found."]
    model = Provider("demo", kind="scripted", options={"script": script})
    clerk = Agent("clerk", "You look up customers.", model="demo", provider="demo")
    hooks = Hooks(before_call=before, after_call=after)
    print(run(clerk, "Find ada.", tools=[find_customer], providers=[model], bus=bus, hooks=hooks).output)
