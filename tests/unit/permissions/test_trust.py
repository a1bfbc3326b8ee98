"""Trust is the user's word: by real path, by content, in a file that only the user writes."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outrider.project.trust import TrustList


@pytest.fixture
def trust(tmp_path: Path) -> TrustList:
    return TrustList(tmp_path / "home" / "trust.json")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def test_nothing_is_trusted_until_the_user_trusts_it(trust: TrustList, workspace: Path):
    assert not trust.is_trusted(workspace)
    trust.trust(workspace, time=1)
    assert trust.is_trusted(workspace)
    assert not trust.is_trusted(workspace.parent)
    trust.revoke(workspace)
    trust.revoke(workspace)
    assert not trust.is_trusted(workspace)


def test_trust_belongs_to_the_real_path(trust: TrustList, workspace: Path, tmp_path: Path):
    trust.trust(workspace, time=1)
    (tmp_path / "alias").symlink_to(workspace)
    assert trust.is_trusted(tmp_path / "alias")
    (tmp_path / "other").mkdir()
    (tmp_path / "alias").unlink()
    (tmp_path / "alias").symlink_to(tmp_path / "other")
    assert not trust.is_trusted(tmp_path / "alias")


def test_an_item_is_approved_with_its_content_and_asked_again_when_that_changes(trust: TrustList, workspace: Path):
    with pytest.raises(ValueError, match="not a trusted workspace"):
        trust.approve(workspace, "hooks/start", b"one")
    trust.trust(workspace, time=1)
    trust.approve(workspace, "hooks/start", b"one")
    assert trust.is_approved(workspace, "hooks/start", b"one")
    assert not trust.is_approved(workspace, "hooks/start", b"two")
    assert not trust.is_approved(workspace, "hooks/stop", b"one")
    assert not trust.is_approved(workspace.parent, "hooks/start", b"one")


def test_trusting_again_preserves_what_was_approved(trust: TrustList, workspace: Path):
    trust.trust(workspace, time=1)
    trust.approve(workspace, "a", b"x")
    trust.trust(workspace, time=2)
    assert trust.load()[str(workspace)].since == 1
    assert trust.is_approved(workspace, "a", b"x")


def test_the_file_is_the_users_alone(trust: TrustList, workspace: Path, tmp_path: Path):
    trust.trust(workspace, time=1)
    file = tmp_path / "home" / "trust.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {path.name for path in file.parent.iterdir()} == {"trust.json", "trust.json.lock"}
    file.chmod(0o666)
    assert not trust.is_trusted(workspace)
    file.chmod(0o600)
    assert trust.is_trusted(workspace)
    file.write_text("damaged")
    assert not trust.is_trusted(workspace)
    file.unlink()
    TrustList(tmp_path / "elsewhere.json").trust(workspace, time=1)
    file.symlink_to(tmp_path / "elsewhere.json")
    assert trust.load() == {}


def test_no_other_user_can_read_the_folder_that_is_made_for_it(workspace: Path, tmp_path: Path):
    folder = tmp_path / "new" / "folder"
    TrustList(folder / "trust.json").trust(workspace, time=1)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "trust.json.lock").stat().st_mode) == 0o600


def test_forgetting_what_was_never_trusted_leaves_the_file_as_it_is(trust: TrustList, workspace: Path, tmp_path: Path):
    file = tmp_path / "home" / "trust.json"
    trust.revoke(workspace)
    assert not file.exists()
    file.write_text("damaged, and to be looked at")
    trust.revoke(workspace)
    assert file.read_text() == "damaged, and to be looked at"


def test_a_failed_write_is_reported_and_leaves_no_files(trust: TrustList, workspace: Path, tmp_path: Path):
    file = tmp_path / "home" / "trust.json"
    file.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        trust.trust(workspace, time=1)
    assert {path.name for path in file.parent.iterdir()} == {"trust.json", "trust.json.lock"}


def test_nothing_is_lost_when_many_trust_at_once(trust: TrustList, tmp_path: Path):
    folders = [str(tmp_path / str(number)) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda folder: trust.trust(folder, time=1), folders))
    assert set(trust.load()) == set(folders)
