"""API keys that `outrider login` stores: in the system's keyring if there is one, else in a file that only the user can
read. A variable of the environment overrides a stored key."""

import os
import stat
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from outrider.config.providers import BUILT_IN_PROVIDERS, EnvironmentVariables, key_variable_names
from outrider.errors import ConfigurationError
from outrider.permissions.paths.containment import write_private_file

KeyLocation = Literal["keyring", "file"]
KEYRING_SERVICE = "outrider"
# The providers of a key, in the order in which they are offered.
KEY_PROVIDERS = ("anthropic", "openai", "google")


class StoredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the key of a provider is stored; `key` is empty if it is in the keyring."""

    place: KeyLocation
    key: str = ""

    def __repr__(self) -> str:
        return f"StoredKey({self.place})"

    def __rich_repr__(self) -> Any:
        yield repr(self)


class KeyStore:
    """The stored keys of the user by provider. `keyring` is the module of that name, or None if there is none; without
    `uses_keyring` all keys are in the file."""

    def __init__(self, file: Path, keyring: Any = None, *, uses_keyring: bool = True) -> None:
        self._file = file
        self._keyring = keyring
        self._uses_keyring = uses_keyring

    def list_providers(self) -> dict[str, KeyLocation]:
        return {name: stored.place for name, stored in self._read().items()}

    def read_keys(self) -> Iterator[tuple[str, str]]:
        """Yields provider and key of each stored key. One that the keyring does not return is left out."""
        for provider, stored in self._read().items():
            key = stored.key if stored.place == "file" else self._read_from_keyring(provider)
            if key:
                yield provider, key

    def store(self, provider: str, key: str) -> KeyLocation:
        """Stores a key and returns where. Raises ConfigurationError if neither place can be written."""
        location: KeyLocation = "keyring" if self._write_to_keyring(provider, key) else "file"
        self._write({**self._read(), provider: StoredKey(location, key if location == "file" else "")})
        return location

    def remove(self, provider: str) -> bool:
        """Deletes a key; returns False if there is none."""
        stored = self._read()
        if provider not in stored:
            return False
        if stored.pop(provider).place == "keyring" and (keyring := self._load_keyring()) is not None:
            try:
                keyring.delete_password(KEYRING_SERVICE, provider)
            except Exception as error:
                raise ConfigurationError(f"the keyring did not delete the key of {provider}: {error}") from error
        self._write(stored)
        return True

    def _read(self) -> dict[str, StoredKey]:
        """Reads the file. Raises ConfigurationError if other users can read or write it, because they may know the
        keys."""
        try:
            status = self._file.lstat()
            content = self._file.read_bytes()
        except OSError:
            return {}
        if os.name == "posix" and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
            raise ConfigurationError(f"{self._file} is readable by other users: run chmod 600 on it, or delete it")
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{self._file} is not a file: delete it, and run outrider login")
        try:
            return msgspec.json.decode(content, type=dict[str, StoredKey])
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{self._file} is damaged: delete it, and run outrider login") from error

    def _write(self, stored: Mapping[str, StoredKey]) -> None:
        try:
            write_private_file(self._file, msgspec.json.encode(stored))
        except OSError as error:
            raise ConfigurationError(f"{self._file} cannot be written: {error.strerror or error}") from error

    def _write_to_keyring(self, provider: str, key: str) -> bool:
        keyring = self._load_keyring()
        if keyring is None:
            return False
        try:
            keyring.set_password(KEYRING_SERVICE, provider, key)
            return keyring.get_password(KEYRING_SERVICE, provider) == key
        except Exception:  # noqa: BLE001  without a desktop session there is no backend; the file is used
            return False

    def _read_from_keyring(self, provider: str) -> str:
        keyring = self._load_keyring()
        try:
            return (keyring.get_password(KEYRING_SERVICE, provider) or "") if keyring is not None else ""
        except Exception:  # noqa: BLE001  a locked keyring is the same as a missing key
            return ""

    def _load_keyring(self) -> Any:
        """Returns the module `keyring`, if it is installed. Loading it takes long, so only stored keys need it."""
        if self._uses_keyring and self._keyring is None and find_spec("keyring") is not None:
            self._keyring = import_module("keyring")
        return self._keyring


def add_stored_keys(environ: Mapping[str, str], store: KeyStore) -> Mapping[str, str]:
    """Returns the environment with the stored keys in the variables of their vendors, where these are not set."""
    added: dict[str, str] = {}
    for provider, key in store.read_keys():
        names = key_variable_names(BUILT_IN_PROVIDERS.get(provider, ""))
        if names and not any(environ.get(name, "").strip() for name in names):
            added[names[0]] = key
    return EnvironmentVariables({**environ, **added})


def provider_of_variable(variable: str) -> str:
    """Returns the provider whose key a variable of the environment holds. Raises ConfigurationError for another one."""
    for provider in KEY_PROVIDERS:
        if variable in key_variable_names(BUILT_IN_PROVIDERS[provider]):
            return provider
    names = sorted(name for provider in KEY_PROVIDERS for name in key_variable_names(BUILT_IN_PROVIDERS[provider]))
    raise ConfigurationError(f"{variable} is not the variable of a key; there are {', '.join(names)}")
