"""The KV cache of a prompt prefix is stored, checked and limited."""

import os
from pathlib import Path

import pytest

from outrider.providers.local.runtime import PrefixCache, PromptPrefix
from tests.fixtures.local_runtime import FakeRuntime

SYSTEM = PromptPrefix((("system", "Be short."),))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "imprints"
    path.mkdir()
    return path


def start(folder: Path, weights: Path, beginning=SYSTEM, *, gives_up: bool = False) -> FakeRuntime:
    runtime = FakeRuntime(lambda _: "", imprints=folder)
    PrefixCache(folder, weights).prepare(runtime, beginning, lambda _: gives_up)
    return runtime


def test_the_second_start_reads_nothing(folder, weights):
    assert start(folder, weights).read_prompts == ["<system>Be short.<user>"]
    second = start(folder, weights)
    assert (second.read_prompts, len(second.restored)) == ([], 1)


def test_examples_belong_to_the_beginning(folder, weights):
    taught = PromptPrefix((("system", "Be short."), ("user", "Hello!"), ("assistant", "Hi.")))
    assert start(folder, weights, taught).read_prompts == ["<system>Be short.<user>Hello!<assistant>Hi.<user>"]


def test_another_workspace_reads_only_what_is_its_own(folder, weights):
    def at(place: str) -> PromptPrefix:
        return PromptPrefix(SYSTEM.messages, f"You are in {place}. ")

    common = "<system>Be short.<user>"
    assert start(folder, weights, at("a")).read_prompts == [common, f"{common}You are in a. "]
    assert start(folder, weights, at("b")).read_prompts == [f"{common}You are in b. "]
    again = start(folder, weights, at("a"))
    assert (len(again.restored), again.read_prompts) == (1, [])


def test_what_all_workspaces_share_outlives_what_is_their_own(folder, weights):
    for number in range(12):
        start(folder, weights, PromptPrefix(SYSTEM.messages, f"You are in {number}. "))
    assert start(folder, weights).read_prompts == []


def test_an_imprint_that_cannot_be_preserved_costs_nothing_but_time(tmp_path, weights):
    runtime = FakeRuntime(lambda _: "", imprints=None)
    PrefixCache(tmp_path, weights).prepare(runtime, SYSTEM, lambda _: False)
    assert len(runtime.read_prompts) == 1


def test_within_a_process_a_beginning_is_prepared_once(folder, weights):
    runtime, imprints = FakeRuntime(lambda _: "", imprints=folder), PrefixCache(folder, weights)
    for _ in range(3):
        imprints.prepare(runtime, SYSTEM, lambda _: False)
    assert len(runtime.read_prompts) == 1


def test_a_damaged_imprint_is_never_given_to_the_runtime(folder, weights):
    start(folder, weights)
    (imprint,) = folder.iterdir()
    imprint.write_bytes(imprint.read_bytes()[:-1])
    second = start(folder, weights)
    assert (second.restored, len(second.read_prompts)) == ([], 1)
    assert len(start(folder, weights).restored) == 1


def test_other_weights_and_other_texts_have_other_cache_keys(folder, weights):
    start(folder, weights)
    weights.write_bytes(b"GGUF, newer")
    assert start(folder, weights).restored == []
    assert start(folder, weights, PromptPrefix((("system", "Be long."),))).restored == []


def test_a_beginning_that_was_given_up_is_not_preserved(folder, weights):
    start(folder, weights, gives_up=True)
    assert [*folder.iterdir()] == []


def test_only_the_latest_imprints_stay(folder, weights):
    for number in range(12):
        start(folder, weights, PromptPrefix((("system", str(number)),)))
        for age, path in enumerate(sorted(folder.iterdir(), key=lambda path: -path.stat().st_mtime)):
            os.utime(path, (2_000_000_000 - age, 2_000_000_000 - age))
    assert len([*folder.iterdir()]) == 8


def test_imprints_are_for_the_user_alone(folder, weights):
    start(folder, weights)
    (imprint,) = folder.iterdir()
    assert imprint.stat().st_mode & 0o077 == 0
