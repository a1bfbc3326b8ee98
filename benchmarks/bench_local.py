"""The embedded model: time to the first text of a second start, and the overhead of our client over the runtime.

Takes about two minutes and uses the largest model that `outrider models pull` has downloaded."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.local_eval.shop import lay_out
from outrider.config.paths import find_app_folders
from outrider.models.local_models import KNOWN_WEIGHTS, ModelWeights, weights_path
from outrider.providers.local.client import LocalClient, RuntimeRequest
from outrider.providers.local.model_pool import EmbeddedRuntime, LoadedModel
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT, NoFileNames
from outrider.providers.local.runtime import RuntimeLimits
from outrider.types.parts import TextPart
from outrider.types.request import ModelMessage, ModelSettings, Prompt, Request

ROUNDS = 5
TOKENS = 64
SECONDS, SHARE = 3.0, 1.10


def bench() -> list[Figure]:
    data = find_app_folders(os.environ).data
    here = [weights for weights in KNOWN_WEIGHTS if weights_path(weights, data).is_file()]
    if not here:
        print("local: no weights are here; fetch them (1.1 GB) with: outrider models pull", file=sys.stderr)
        return []
    place = weights_path(here[0], data)
    return [first_text(here[0], place), *asyncio.run(speed(place))]


def first_text(weights: ModelWeights, place: Path) -> Figure:
    """Uses a separate home: the first start evaluates the whole prompt, the others load it from the cache."""
    with tempfile.TemporaryDirectory(prefix="bench-local-") as folder:
        home, workspace = Path(folder, "home"), lay_out(Path(folder, "workspace"))
        weights_path(weights, home).parent.mkdir(parents=True)
        weights_path(weights, home).symlink_to(place)
        first, *taken = [started(home, workspace, weights.name) for _ in range(ROUNDS + 1)]
    value = statistics.median(taken)
    print(
        f"local: the first start took {first:.1f} s, the others {min(taken):.2f} to {max(taken):.2f} s", file=sys.stderr
    )
    name = f"local/{weights.name}: second start to first text"
    return Figure(name, value, "s", target=f"< {SECONDS:g} s", ok=value < SECONDS)


def started(home: Path, workspace: Path, name: str) -> float:
    begin = time.time()
    command = [sys.executable, "-m", "benchmarks.local_start", str(workspace), f"local/{name}"]
    environment = os.environ | {"OUTRIDER_HOME": str(home)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout) - begin


async def speed(weights: Path) -> list[Figure]:
    """CPU time for the same answer, with the runtime alone and through our client, alternating."""
    runtime = EmbeddedRuntime(weights, weights.parent, RuntimeLimits())
    with closing(LoadedModel(runtime, None)) as model:
        client = LocalClient("local", OneModel(model), LOCAL_TOOL_PROMPT)
        request = asking("Tell me the story of a lighthouse.")
        alone, ours = [], []
        for _ in range(ROUNDS + 1):
            alone.append(
                await asyncio.to_thread(
                    measured_alone, runtime, RuntimeRequest(request, LOCAL_TOOL_PROMPT, NoFileNames()).body
                )
            )
            begin = time.process_time()
            async for _ in client.stream(request):
                pass
            ours.append(time.process_time() - begin)
    least, cost = min(alone[1:]), min(ours[1:])
    name = f"local/{weights.stem}: {TOKENS} tokens through our client"
    return [
        Figure(f"local/{weights.stem}: {TOKENS} tokens by the runtime alone", least, "CPU s"),
        Figure(name, cost, "CPU s", cost / least, f"<= {SHARE:g} x", cost / least <= SHARE),
    ]


def measured_alone(runtime: EmbeddedRuntime, body: str) -> float:
    begin = time.process_time()
    runtime.chat(body, lambda _: False)
    return time.process_time() - begin


def asking(text: str) -> Request:
    settings = ModelSettings(max_output_tokens=TOKENS, extra={"ignore_eos": True})
    return Request("", Prompt([ModelMessage("user", (TextPart(text),))]), "Be chatty.", settings=settings)


class OneModel:
    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def acquire(self, name: str) -> LoadedModel:
        return self._model

    def release(self, name: str) -> None:
        pass
