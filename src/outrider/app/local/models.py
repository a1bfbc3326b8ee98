"""Makes the client of a provider of kind `local`: weights by name, loaded once for the whole process."""

import os
from importlib.util import find_spec
from pathlib import Path

import msgspec

from outrider.app.config.folders import find_folders
from outrider.app.local.compact import PRIMER
from outrider.app.local.paths import WorkspaceNames
from outrider.app.local.shelf import find_weights, imprints_folder
from outrider.errors import ConfigurationError
from outrider.providers.local.client import LocalClient
from outrider.providers.local.runtimes.loaded import POOL, LoadedModel
from outrider.providers.local.runtimes.runtime import RuntimeLimits
from outrider.types.agents import Provider


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
