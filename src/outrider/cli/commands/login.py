"""`outrider login` and `outrider logout`: store, check and delete API keys."""

import asyncio
import os
import sys
from argparse import Namespace
from getpass import getpass

from outrider.cli import exit_codes
from outrider.cli.output import Console
from outrider.cli.setup import user_folders
from outrider.config.providers import BUILT_IN_PROVIDERS, find_key_and_address, key_variable_names
from outrider.config.stored_keys import KEY_PROVIDERS, KeyStore
from outrider.errors import ConfigurationError
from outrider.models.live_models import check_key
from outrider.types.agents import Provider

_STORAGE_NAMES = {"keyring": "the system's keyring", "file": "a file that only you can read"}


def log_in(arguments: Namespace) -> int:
    """Asks for a key, checks it with the vendor and stores it. With `--list`, prints which keys are stored."""
    console, store = Console(), KeyStore(user_folders().keys_file)
    if arguments.list:
        for name, storage in store.list_providers().items():
            console.print(f"{name}: stored in {_STORAGE_NAMES[storage]}")
        return exit_codes.SUCCESS
    provider = arguments.provider or _ask_provider()
    key = _read_key(provider)
    if not arguments.no_check:
        kind = BUILT_IN_PROVIDERS[provider]
        _, address = find_key_and_address(os.environ, kind)
        problem = asyncio.run(check_key(Provider(provider, kind, key, address)))
        if problem.refused:
            raise ConfigurationError(f"{provider} refused the key: {problem.text}. It was not stored")
        if problem.text:
            console.print_stderr(f"the key could not be checked: {problem.text}")
    storage = store.store(provider, key)
    console.print_stderr(
        f"The key of {provider} is stored in {_STORAGE_NAMES[storage]}. To delete it: outrider logout {provider}"
    )
    variable = key_variable_names(BUILT_IN_PROVIDERS[provider])[0]
    console.print_stderr(f"If {variable} is set, it is used instead.")
    return exit_codes.SUCCESS


def log_out(arguments: Namespace) -> int:
    """Deletes the stored key of a provider, or all."""
    console, store = Console(), KeyStore(user_folders().keys_file)
    names = [arguments.provider] if arguments.provider else list(store.list_providers())
    deleted_names = [name for name in names if store.remove(name)]
    console.print_stderr(f"deleted: {', '.join(deleted_names)}" if deleted_names else "there is no stored key")
    return exit_codes.SUCCESS


def _ask_provider() -> str:
    if not sys.stdin.isatty():
        raise ConfigurationError(f"name the provider: outrider login {'|'.join(KEY_PROVIDERS)}")
    listed = "\n".join(f"  {number}. {name}" for number, name in enumerate(KEY_PROVIDERS, 1))
    sys.stderr.write(f"Which provider is the key for?\n{listed}\n")
    sys.stderr.flush()
    answer = input("> ").strip()
    if answer.isdecimal() and 1 <= int(answer) <= len(KEY_PROVIDERS):
        return KEY_PROVIDERS[int(answer) - 1]
    if answer in KEY_PROVIDERS:
        return answer
    raise ConfigurationError(f"there is no provider {answer!r}; choose one of {', '.join(KEY_PROVIDERS)}")


def _read_key(provider: str) -> str:
    """Reads the key without echo from a terminal, or the first line of a pipe. It is never an argument, because process
    lists show arguments."""
    key = getpass(f"API key of {provider}: ") if sys.stdin.isatty() else sys.stdin.readline()
    key = key.strip()
    if not key or any(character.isspace() for character in key) or not key.isprintable():
        raise ConfigurationError("this is not a key: it is empty or contains spaces")
    return key
