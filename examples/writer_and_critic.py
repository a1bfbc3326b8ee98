"""Several agents: a writer asks a critic and a fact checker at once; one budget limits all of them together.

A request reserves its tokens before it is sent, so agents that answer at once need `max_output_tokens`."""

from outrider import Agent, Limits, Provider, run

writer = Agent(
    "writer", "You write. Let others check your text.", "demo", "writer", role="writes texts", max_output_tokens=2_000
)
critic = Agent("critic", "You find weak sentences.", "demo", "critic", role="judges style", max_output_tokens=2_000)
checker = Agent("checker", "You check facts.", "demo", "checker", role="checks facts", max_output_tokens=2_000)


def write(topic: str, providers: list[Provider]) -> str:
    limits = Limits(turns=20, tokens=50_000, depth=3)
    result = run(writer, f"Write about {topic}.", [writer, critic, checker], providers=providers, limits=limits)
    for message in result.messages:
        print(f"{message.sender} → {message.receiver}: {message.content}")
    print(f"{result.usage.tokens.total} tokens, ended because of: {result.termination_reason}")
    return result.output


if __name__ == "__main__":
    ask = [
        {"tool": "call_agent", "input": {"agent_name": name, "message": "Tea comes from Peru."}}
        for name in ("critic", "checker")
    ]
    scripts = {
        "writer": [ask, "Tea comes from China."],
        "critic": ["It is short and clear."],
        "checker": ["Wrong: tea comes from China."],
    }
    demo = [Provider(name, kind="scripted", options={"script": script}) for name, script in scripts.items()]
    print(write("tea", demo))
