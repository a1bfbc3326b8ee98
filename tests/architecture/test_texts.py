"""Every module has a docstring, every tool a prompt, and no text contains a path of one machine."""

import re

from tests.architecture.repository import (
    PACKAGE,
    ROOT,
    exemptions,
    modules_under,
    outline,
    short,
    tracked_files,
)

MOCKING = ("unittest.mock", "mock", "pytest_mock", "asynctest", "flexmock", "doublex")
# Written in pieces, so that this file does not hold what it looks for.
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:" + "|".join(("work", "root", "farm")) + r")(?![\w-])")
REGISTRIES = re.compile(
    "|".join((r"pypi\.(?:org|io)", "python" + r"hosted\.org", "npm" + r"js\.(?:org|com)", "debian" + r"\.org"))
)


def test_every_module_opens_with_one_sentence():
    silent = []
    for path in modules_under(PACKAGE, ROOT / "benchmarks", ROOT / "examples"):
        opening = outline(path).docstring.partition("\n\n")[0]
        if not opening.endswith((".", "?")):
            silent.append(short(path))
    assert not silent, f"say in one sentence what these are for: {silent}"


def test_every_built_in_tool_has_its_prompt_next_to_it():
    folder = PACKAGE / "tools" / "builtin"
    loaded = [
        name
        for path in folder.glob("*.py")
        for name in re.findall(r'load_prompt\(__file__, "(\w+)"', path.read_text(encoding="utf-8"))
    ]
    assert {path.stem for path in folder.glob("*.md")} == set(loaded)
    assert len(loaded) == len(set(loaded))


def test_no_test_uses_a_mocking_library():
    mocking = [
        f"{short(path)} imports {name}"
        for path in modules_under(ROOT / "tests")
        if any(library in path.read_text(encoding="utf-8") for library in MOCKING)  # to parse them all takes seconds
        for name in outline(path).imports
        if any(name == library or name.startswith(f"{library}.") for library in MOCKING)
    ]
    assert not mocking, f"write a fake in tests/fixtures instead: {mocking}"


def test_no_text_names_a_path_of_one_machine_or_a_package_registry():
    exempt, found = exemptions("text"), set()
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found |= {
            f"{short(path)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_PATHS.search(line) or REGISTRIES.search(line)
        }
    unexpected = sorted(place for place in found if place.partition(":")[0] not in exempt)
    assert not unexpected, "\n  ".join(["these belong to one machine:", *unexpected])
    stale = sorted(set(exempt) - {place.partition(":")[0] for place in found})
    assert not stale, f"remove the exemptions of {stale}"
