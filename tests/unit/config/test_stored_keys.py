"""Stored keys: where they are written, who can read them, and what overrides them."""

from pathlib import Path

import pytest

from outrider.config.settings import read_settings
from outrider.config.stored_keys import KeyStore, add_stored_keys
from outrider.errors import ConfigurationError


class FakeKeyring:
    """The functions of the module `keyring`."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.keys: dict[tuple[str, str], str] = {}

    def set_password(self, service: str, name: str, key: str) -> None:
        if not self.works:
            raise RuntimeError("No recommended backend was available")
        self.keys[service, name] = key

    def get_password(self, service: str, name: str) -> str | None:
        return self.keys.get((service, name))

    def delete_password(self, service: str, name: str) -> None:
        del self.keys[service, name]


def test_without_a_keyring_the_key_is_in_a_file_that_only_the_user_can_read(tmp_path: Path):
    file = tmp_path / "data" / "keys.json"
    store = KeyStore(file, FakeKeyring(works=False))

    assert store.store("anthropic", "sk-ant-1") == "file"

    assert file.stat().st_mode & 0o777 == 0o600
    assert dict(KeyStore(file).read_keys()) == {"anthropic": "sk-ant-1"}
    assert store.remove("anthropic")
    assert not store.remove("anthropic")
    assert "sk-ant-1" not in file.read_text()


def test_with_a_keyring_the_file_has_no_key(tmp_path: Path):
    keyring = FakeKeyring()
    store = KeyStore(tmp_path / "keys.json", keyring)

    assert store.store("openai", "sk-2") == "keyring"

    assert "sk-2" not in (tmp_path / "keys.json").read_text()
    assert dict(store.read_keys()) == {"openai": "sk-2"}
    assert store.remove("openai")
    assert keyring.keys == {}


@pytest.mark.parametrize("content", ["{", '{"openai": 5}', '{"openai": {"place": "moon"}}'])
def test_a_damaged_file_is_an_error_with_a_remedy(tmp_path: Path, content: str):
    (tmp_path / "keys.json").touch(mode=0o600)
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(ConfigurationError, match="outrider login"):
        dict(KeyStore(tmp_path / "keys.json").read_keys())


def test_a_file_that_others_can_read_is_not_used(tmp_path: Path):
    store = KeyStore(tmp_path / "keys.json", FakeKeyring(works=False))
    store.store("openai", "sk-2")
    (tmp_path / "keys.json").chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by other users"):
        dict(store.read_keys())


def test_a_variable_of_the_environment_overrides_a_stored_key(tmp_path: Path):
    store = KeyStore(tmp_path / "keys.json", FakeKeyring(works=False))
    store.store("anthropic", "stored")
    store.store("google", "stored")

    found = add_stored_keys({"ANTHROPIC_API_KEY": "set", "GOOGLE_API_KEY": "set"}, store)

    assert dict(found) == {"ANTHROPIC_API_KEY": "set", "GOOGLE_API_KEY": "set"}
    assert add_stored_keys({}, store)["GEMINI_API_KEY"] == "stored"


def test_settings_use_a_stored_key_and_never_show_it(tmp_path: Path):
    environ = {"OUTRIDER_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert read_settings(cwd=tmp_path, environ=environ).missing
    KeyStore(tmp_path / "keys.json", FakeKeyring(works=False)).store("anthropic", "sk-ant-stored")

    settings = read_settings(cwd=tmp_path, environ=environ)

    assert not settings.missing
    assert settings.model.startswith("anthropic/")
    assert "sk-ant-stored" not in repr(settings)
    assert "sk-ant-stored" not in settings.environ.values()
