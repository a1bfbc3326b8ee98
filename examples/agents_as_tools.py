"""Several translators at once: the front agent calls the others by name, in parallel; then another agent corrects and
joins their answers."""

from outrider import Agent, Provider, run
from outrider.testing import call, scripted_model

translators = [
    Agent(name, f"You translate the user's message to {name}.", "demo", name, role=f"translates to {name}")
    for name in ("spanish", "french", "italian")
]
front = Agent("front", "Ask the translators for the wanted languages. Never translate yourself.", "demo", "front")
editor = Agent("editor", "Inspect the translations, correct them if needed, and join them.", "demo", "editor")


def translate(message: str, providers: list[Provider]) -> str:
    result = run(front, message, agents=[front, *translators], providers=providers)
    for step in result.messages:
        print(f"{step.sender} → {step.receiver}: {step.content}")
    return run(editor, "Now the final text.", providers=providers, session=result.session).output


if __name__ == "__main__":
    calls = [call("call_agent", agent_name=name, message="Hello, world!") for name in ("french", "spanish")]
    demo = [
        scripted_model(calls, "Bonjour, Hola", name="front"),
        scripted_model("Bonjour", name="french"),
        scripted_model("Hola", name="spanish"),
        scripted_model(name="italian"),
        scripted_model("Bonjour. Hola.", name="editor"),
    ]
    print(translate("Translate 'Hello, world!' to French and Spanish.", demo))
