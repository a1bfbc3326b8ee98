"""Streams a typed list: complete items are available before the answer ends."""

from dataclasses import dataclass

from outrider import Agent, Provider, run_stream


@dataclass
class City:
    name: str
    people: int


if __name__ == "__main__":
    answer = '[{"name": "Ulm", "people": 126000}, {"name": "Bern", "people": 134000}]'
    model = Provider("demo", kind="scripted", options={"script": [answer]})
    guide = Agent("guide", "You know cities.", model="demo", provider="demo")
    shown = 0
    with run_stream(guide, "Two cities, please.", providers=[model], output_type=list[City]) as events:
        for event in events:
            if event.type == "partial":
                for city in (events.partial or [])[shown:]:
                    print("so far:", city)
                    shown += 1
    print("all:", events.result.output)
