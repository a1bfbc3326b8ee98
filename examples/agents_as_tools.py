"""Several translators at once: the front agent calls the others by name, in parallel, and combines their answers."""

from outrider import Agent, Provider, run

languages = {"spanish": "Hola", "french": "Bonjour", "italian": "Ciao"}
translators = [
    Agent(name, f"Translate into {name}.", model="demo", provider=name, role=f"translates into {name}")
    for name in languages
]
front = Agent("front", "Ask the translators for the wanted languages. Never translate yourself.", "demo", "front")


def translate(message: str, providers: list[Provider]) -> str:
    result = run(front, message, agents=[front, *translators], providers=providers)
    for step in result.messages:
        print(f"{step.sender} → {step.receiver}: {step.content}")
    return result.output


if __name__ == "__main__":
    calls = [{"tool": "call_agent", "input": {"agent_name": t.name, "message": "Hello"}} for t in translators[:2]]
    demo = [Provider(name, kind="scripted", options={"script": [word]}) for name, word in languages.items()]
    demo.append(Provider("front", kind="scripted", options={"script": [calls, "Hola, Bonjour"]}))
    print(translate("Say hello in Spanish and French.", demo))
