"""Trust is the user's word: by real path, by content, in a file that only the user writes."""

import stat
from pathlib import Path

import pytest

from outrider.permissions.trust import TrustList, content_hash


@pytest.fixture
def trust(tmp_path: Path) -> TrustList:
    return TrustList(tmp_path / "home" / "trust.json")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def test_nothing_is_trusted_until_somebody_says_so(trust: TrustList, workspace: Path):
    assert not trust.trusts(workspace)
    trust.trust(workspace, time=1)
    assert trust.trusts(workspace)
    assert not trust.trusts(workspace.parent)
    trust.forget(workspace)
    trust.forget(workspace)
    assert not trust.trusts(workspace)


def test_trust_belongs_to_the_real_path(trust: TrustList, workspace: Path, tmp_path: Path):
    trust.trust(workspace, time=1)
    (tmp_path / "alias").symlink_to(workspace)
    assert trust.trusts(tmp_path / "alias")
    (tmp_path / "other").mkdir()
    (tmp_path / "alias").unlink()
    (tmp_path / "alias").symlink_to(tmp_path / "other")
    assert not trust.trusts(tmp_path / "alias")


def test_an_item_is_approved_with_its_content_and_asked_again_when_that_changes(trust: TrustList, workspace: Path):
    with pytest.raises(ValueError, match="not trusted"):
        trust.approve(workspace, "hooks/start", b"one")
    trust.trust(workspace, time=1)
    trust.approve(workspace, "hooks/start", b"one")
    assert trust.approves(workspace, "hooks/start", b"one")
    assert not trust.approves(workspace, "hooks/start", b"two")
    assert not trust.approves(workspace, "hooks/stop", b"one")
    assert not trust.approves(workspace.parent, "hooks/start", b"one")
    assert trust.approved_hashes(workspace) == {content_hash(b"one")}
    assert trust.approved_hashes(workspace.parent) == frozenset()


def test_trusting_again_keeps_what_was_approved(trust: TrustList, workspace: Path):
    trust.trust(workspace, time=1)
    trust.approve(workspace, "a", b"x")
    trust.trust(workspace, time=2)
    assert trust.listed()[str(workspace)].since == 1
    assert trust.approves(workspace, "a", b"x")


def test_the_file_is_the_users_alone(trust: TrustList, workspace: Path, tmp_path: Path):
    trust.trust(workspace, time=1)
    file = tmp_path / "home" / "trust.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {path.name for path in file.parent.iterdir()} == {"trust.json", "trust.json.lock"}
    file.chmod(0o666)
    assert not trust.trusts(workspace)
    file.chmod(0o600)
    assert trust.trusts(workspace)
    file.write_text("damaged")
    assert not trust.trusts(workspace)
    file.unlink()
    (tmp_path / "elsewhere.json").write_text("{}")
    file.symlink_to(tmp_path / "elsewhere.json")
    assert trust.listed() == {}
