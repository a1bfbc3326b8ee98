"""`outrider models`: lists models and local servers; downloads and removes local models."""

import asyncio
import sys
from argparse import Namespace

import msgspec

from outrider.cli import exit_codes
from outrider.cli.output import Console, format_table
from outrider.cli.setup import user_folders
from outrider.config.settings import read_settings
from outrider.engine.diagnostics import KnownModel, known_models
from outrider.errors import ConfigurationError
from outrider.models.local_download import ProgressLine, pull_weights
from outrider.models.local_models import find_servers, list_weights, remove_weights
from outrider.presentation.formats import format_bytes, format_cost, format_tokens


def list_models(arguments: Namespace) -> int:
    """Prints local models and the models of the configured providers, or of one provider."""
    console, settings = Console(), read_settings()
    if arguments.provider in (None, "local"):
        _list_local(console, as_json=arguments.json)
    if arguments.provider == "local" or not settings.providers:
        return exit_codes.SUCCESS
    providers = [provider for provider in settings.providers if arguments.provider in (None, provider.name)]
    if not providers:
        names = ", ".join(provider.name for provider in settings.providers)
        raise ConfigurationError(f"provider {arguments.provider!r} is not configured; configured providers: {names}")
    models = asyncio.run(known_models(providers, settings.models))
    if arguments.json:
        for model in models:
            console.print(msgspec.json.encode(model).decode())
        return exit_codes.SUCCESS
    heads = ("model", "context", "output", "in per 1M", "out per 1M", "takes")
    for line in (
        format_table(heads, [_model_row(model) for model in models], console.width, right=(1, 2, 3, 4))
        if models
        else ()
    ):
        console.print(line)
    listed = {model.name.partition("/")[0] for model in models}
    for provider in providers:
        if provider.name not in listed and provider.kind != "local":
            console.print_stderr(f"{provider.name}: the list of models is unknown; select one as {provider.name}/MODEL")
    return exit_codes.SUCCESS


def list_servers(arguments: Namespace) -> int:
    """Prints the models of servers found on this machine."""
    console, servers = Console(), find_servers()
    for server in servers:
        for model in server.models:
            console.print(f"{server.provider.name}/{model}")
    if not servers:
        console.print_stderr("no model server found at the default ports on this machine")
    return exit_codes.SUCCESS


def pull_model(arguments: Namespace) -> int:
    """Downloads a local model with a progress line, and prints its path."""
    Console().print(str(pull_weights(arguments.model, user_folders().data, ProgressLine(sys.stderr))))
    return exit_codes.SUCCESS


def remove_model(arguments: Namespace) -> int:
    """Deletes a downloaded model."""
    Console().print_stderr(f"{format_bytes(remove_weights(arguments.model, user_folders().data))} freed")
    return exit_codes.SUCCESS


def _list_local(console: Console, *, as_json: bool) -> None:
    for weights in list_weights(user_folders().data):
        if as_json:
            entry = {"name": f"local/{weights.name}", "bytes": weights.bytes, "here": weights.path is not None}
            console.print(msgspec.json.encode(entry).decode())
            continue
        download_state = f"{format_bytes(weights.partial)} downloaded" if weights.partial else "not downloaded"
        state = "on this machine" if weights.path else f"{download_state}: outrider models pull {weights.name}"
        console.print(f"local/{weights.name}  {weights.title}, {format_bytes(weights.bytes)}, {state}")


def _model_row(model: KnownModel) -> tuple[str, ...]:
    abilities = [ability for ability in ("tools", "images", "reasoning") if getattr(model, ability)]
    limits = [format_tokens(limit) if limit else "?" for limit in (model.context_limit, model.output_limit)]
    prices = [format_cost(price) if price is not None else "?" for price in (model.input_price, model.output_price)]
    return (model.name, *limits, *prices, " ".join(abilities))
