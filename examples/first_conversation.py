"""A first conversation: a question, a tool call with its result, an answer, and the prompt that a model receives."""

import time
from pathlib import Path

from outrider import EventBus, Session, TextPart, Tokens, ToolPart, ToolPending, lower
from outrider.events import Event, ToolExecutionCompletedEvent, ToolExecutionStartedEvent


def main() -> None:
    bus = EventBus()
    bus.subscribe_all(show_event)
    session = Session(title="A first conversation", event_bus=bus)

    session.add_user_message("How many examples does this folder hold?")
    # The model's answers are predefined, so no key is needed.
    call = ToolPart("call_1", "list_files", ToolPending().ready({"pattern": "*.py"}))
    session.add_assistant_message([TextPart("I will look."), call], tokens=Tokens(input=42, output=9))
    count = list_files(session, bus, call)
    session.add_assistant_message(f"There are {count}.", tokens=Tokens(input=61, output=6))

    show_transcript(session)
    restored = Session.from_dict(session.to_dict())
    print(f"\nSaved and loaded again: {len(restored)} messages, equal: {restored == session}")


def list_files(session: Session, bus: EventBus, call: ToolPart) -> int:
    """Execute the call as the engine does: the running state is stored before the call has an effect."""
    running = ToolPending(call.state.input, phase="ready").start(at=now())
    session.update_part(call.id, lambda part: part.update_state(running))
    bus.publish(ToolExecutionStartedEvent(tool_name=call.tool, tool_input=running.input, session_id=session.id))

    found = sorted(path.name for path in Path(__file__).parent.glob(running.input["pattern"]))

    completed = running.complete("\n".join(found), at=now(), title=f"{len(found)} found")
    session.update_part(call.id, lambda part: part.update_state(completed))
    bus.publish(
        ToolExecutionCompletedEvent(
            tool_name=call.tool,
            duration_ms=completed.time.end - completed.time.start,
            output_preview=completed.output,
            session_id=session.id,
        )
    )
    return len(found)


def show_event(event: Event) -> None:
    print(f"  event  {event.event_type}")


def show_transcript(session: Session) -> None:
    print(f"\n{session.title}: {session.usage.tokens.total} tokens")
    for message in session.messages:
        for part in message.parts:
            match part:
                case TextPart():
                    print(f"{message.role:>10}  {part.text}")
                case ToolPart():
                    print(f"{'call':>10}  {part.tool} {part.state.input}: {part.display_status}")
                case _:
                    print(f"{part.part_type:>10}")
    print("\nWhat the model would get:")
    for lowered in lower(session.messages, family="any"):
        print(f"{lowered.role:>10}  {', '.join(part.part_type for part in lowered.content)}")


def now() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
