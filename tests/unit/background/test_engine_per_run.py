"""A worker applies the settings of a run and the rules of its workspace to that run only."""

from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.factory import engine_options_builder
from outrider.background.records import JobOverrides, JobSpec
from outrider.errors import ConfigurationError
from outrider.project.trust import WorkspaceTrust, find_project
from tests.fixtures.standard_engine import Place


def test_the_overrides_of_a_job_and_the_rules_of_its_workspace_hold(tmp_path: Path):
    place = Place(tmp_path)
    another = tmp_path / "another"
    (another / ".outrider").mkdir(parents=True)
    (another / ".outrider" / "config.toml").write_text('[rules]\ndeny = ["shell(rm *)"]\n')
    settings = place.settings()
    WorkspaceTrust(find_project(another, place.home), settings.folders.trust_file).trust()
    fitted = engine_options_builder(settings)
    terms = JobOverrides(model="anthropic/claude-haiku-4-5", allow=("write",), deny=("web_fetch",))
    made = fitted(JobSpec(prompt="x", queue="runs", terms=terms), str(another))
    assert set(made["rules"].deny) == {"shell(rm *)", "web_fetch"}
    assert made["agents"][0].model == "claude-haiku-4-5"
    assert made["titles"] is False
    plain = fitted(JobSpec(prompt="x", queue="runs"), str(place.workspace))
    assert plain["rules"].deny == ()
    with pytest.raises(ConfigurationError):
        fitted(JobSpec(prompt="x", queue="runs", terms=JobOverrides(model="nobody/knows-this")), str(place.workspace))
