"""No script of the grammar that the analyser proves to only read has an effect when it really runs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.script_variants import ScriptGenerator
from tests.security.strace_effects import available, build, effects
from tests.security.test_option_variants import proven

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not available, reason="needs Linux with bubblewrap (bwrap) and strace"),
]
COUNT = int(os.environ.get("OUTRIDER_VARIANTS") or (20_000 if os.environ.get("OUTRIDER_SOAK") else 1500))
SEED = int(os.environ.get("OUTRIDER_SEED", "20260101"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scripts")
    build(place)
    return place


def test_scripts_of_the_grammar(base: Path, record_property: Callable[[str, object], None]):
    generator = ScriptGenerator(SEED)
    commands = list(dict.fromkeys(generator.make() for _ in range(COUNT)))
    allowed = proven(commands, base)
    found = {command: seen for command, seen in zip(allowed, effects(allowed, base), strict=True) if seen}
    record_property("figures", f"{len(commands)} scripts, {len(allowed)} proven and run, {len(found)} with an effect")
    assert found == {}
    assert len(allowed) > len(commands) // 30
