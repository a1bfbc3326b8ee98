"""What becomes of a plan: it is carried out, changed first, refused, or talked about."""

from outrider.tui.asking.panel import Key
from outrider.tui.commands.stage import Stage

BY = "terminal"
_QUESTION = "Shall it be carried out? The session then goes on in agent mode."
_KEYS = (
    Key("y", "accept", "carry it out"),
    Key("c", "change", "change it first"),
    Key("n", "refuse", "no, because…", "what should be different? The model plans anew"),
    Key("l", "later", "talk about it first"),
)


async def ask_about_plan(stage: Stage) -> None:
    helm = stage.helm
    session_id = helm.session_id
    plan = await helm.engine.plan(session_id)
    if plan is None:
        return
    answer, words = await stage.choose("The plan is ready", _QUESTION, _KEYS)
    match answer:
        case "accept":
            await helm.engine.accept_plan(session_id, by=BY)
        case "change":
            changed = await stage.edit("Change the plan", plan.text)
            if changed is None:
                await ask_about_plan(stage)
            else:
                await helm.engine.accept_plan(session_id, changed, by=BY)
        case "refuse":
            await helm.engine.refuse_plan(session_id, words, by=BY)
        case _:
            stage.redraw()
