"""Names of local models resolve to files, or to a message about how to get them."""

from pathlib import Path

import pytest

from outrider.errors import ConfigurationError, WeightsError
from outrider.models.local_models import (
    DEFAULT_WEIGHTS,
    KNOWN_WEIGHTS,
    SMALL_WEIGHTS,
    find_weights,
    known_weights,
    list_weights,
    prefix_cache_folder,
    remove_weights,
    weights_path,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "0.5b.gguf").write_bytes(b"GGUF small")
    (folder / "mine.gguf").write_bytes(b"GGUF mine")
    (folder / "1.5b.partial").write_bytes(b"GG")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("", DEFAULT_WEIGHTS),
        ("1.5b", DEFAULT_WEIGHTS),
        ("1.5B", DEFAULT_WEIGHTS),
        ("small", SMALL_WEIGHTS),
        ("0.5b", SMALL_WEIGHTS),
    ],
)
def test_a_name_means_one_model(name, meant):
    assert known_weights(name) is meant


def test_an_unknown_name_is_reported_those_that_exist():
    with pytest.raises(ConfigurationError, match=r"1\.5b, 0\.5b.*PATH\.gguf"):
        known_weights("7b")


def test_weights_are_found_by_name_and_by_path(data):
    assert find_weights("0.5b", data) == data / "models" / "0.5b.gguf"
    assert find_weights(str(data / "models" / "mine.gguf"), data) == data / "models" / "mine.gguf"


def test_weights_that_are_not_there_are_reported_with_the_remedy(data):
    with pytest.raises(WeightsError, match=r"1\.1 GB.*outrider models pull 1\.5b"):
        find_weights("", data)


@pytest.mark.parametrize("content", [None, b"not weights"])
def test_a_file_that_holds_no_weights_is_refused(tmp_path, content):
    path = tmp_path / "own.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"own\.gguf"):
        find_weights(str(path), tmp_path)


def test_the_list_shows_what_is_complete_missing_and_partial(data):
    default, small, own = list_weights(data)
    assert (default.name, default.path, default.partial, default.default) == ("1.5b", None, 2, True)
    assert (small.path, small.default) == (data / "models" / "0.5b.gguf", False)
    assert (own.name, own.bytes) == (str(data / "models" / "mine.gguf"), 9)
    assert len(list_weights(data / "nowhere")) == len(KNOWN_WEIGHTS)


def test_removing_frees_what_pull_brought(data):
    assert remove_weights("small", data) == 10
    assert remove_weights("1.5b", data) == 2
    with pytest.raises(WeightsError, match="not on this machine"):
        remove_weights("small", data)
    assert (data / "models" / "mine.gguf").exists()


def test_removing_takes_along_what_else_was_there_for_the_weights(data):
    small = weights_path(SMALL_WEIGHTS, data)
    for left in (prefix_cache_folder(data, small) / "a.bin", small.parent / "0.5b-pieces-x" / "part.whl"):
        left.parent.mkdir(parents=True)
        left.write_bytes(b"1234")
    cached = prefix_cache_folder(data, data / "models" / "mine.gguf") / "b.bin"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert remove_weights("small", data) == 18
    assert cached.exists()


def test_pieces_of_known_weights_add_up():
    for weights in KNOWN_WEIGHTS:
        assert weights.parts is not None
        rest = weights.bytes - weights.parts.piece * (weights.parts.count - 1)
        assert 0 < rest <= weights.parts.piece
