"""The weights on this machine: which are there, where a model's name leads, and how to be rid of one."""

import os
from pathlib import Path

import msgspec

from outrider.app.local.weights import DEFAULT, KNOWN, Weights
from outrider.errors import ConfigurationError, WeightsError

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
