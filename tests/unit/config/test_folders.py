"""Where Outrider's own things lie, on each platform."""

from pathlib import Path

import pytest

from outrider.config.paths import find_app_folders, make_private_folder
from outrider.errors import ConfigurationError


def test_one_variable_moves_everything(tmp_path: Path):
    folders = find_app_folders({"OUTRIDER_HOME": str(tmp_path), "HOME": "/home/u"})
    assert (folders.config, folders.data, folders.home) == (tmp_path, tmp_path, Path("/home/u"))


def test_a_tilde_in_the_variable_is_the_user_s_folder():
    assert find_app_folders({"OUTRIDER_HOME": "~/elsewhere", "HOME": "/home/u"}).data == Path("/home/u/elsewhere")


@pytest.mark.parametrize(
    ("platform", "environ", "config", "data"),
    [
        ("linux", {}, "/home/u/.config/outrider", "/home/u/.local/share/outrider"),
        ("linux", {"XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/d"}, "/c/outrider", "/d/outrider"),
        ("darwin", {}, "/home/u/Library/Application Support/outrider", "/home/u/Library/Application Support/outrider"),
        ("win32", {"APPDATA": "/r", "LOCALAPPDATA": "/l"}, "/r/outrider", "/l/outrider"),
    ],
)
def test_each_platform_has_its_usual_places(platform, environ, config, data):
    folders = find_app_folders({"HOME": "/home/u", **environ}, platform=platform)
    assert (folders.config, folders.data) == (Path(config), Path(data))


def test_a_relative_place_does_not_count_since_it_would_lie_in_the_workspace():
    folders = find_app_folders({"HOME": "/home/u", "XDG_CONFIG_HOME": ".config"}, platform="linux")
    assert folders.config == Path("/home/u/.config/outrider")


def test_a_private_folder_is_closed_to_others_also_if_it_was_open(tmp_path: Path):
    made = make_private_folder(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o755)
    assert make_private_folder(made).stat().st_mode & 0o777 == 0o700
    made.chmod(0o1777)
    assert make_private_folder(made).stat().st_mode & 0o7777 == 0o1777, "like /tmp, it is for all users"


def test_a_folder_that_cannot_be_made_is_named_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file/data cannot be used .*; set OUTRIDER_HOME"):
        make_private_folder(tmp_path / "file" / "data")


def test_a_place_for_everything_that_is_not_a_whole_path_is_refused():
    with pytest.raises(ConfigurationError, match="set an absolute path"):
        find_app_folders({"OUTRIDER_HOME": ".outrider", "HOME": "/home/u"})
