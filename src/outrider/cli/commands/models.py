"""The models that can be asked, as a table."""

import sys
from argparse import Namespace

import msgspec

from outrider.cli import registry as exits
from outrider.cli.output import Console, table, tokens_text
from outrider.cli.setup import folders
from outrider.config.settings import read_settings
from outrider.engine.diagnostics import KnownModel, known_models
from outrider.errors import ConfigurationError
from outrider.models.local.discovery import find_servers
from outrider.models.local.download import ProgressLine, pull_weights
from outrider.models.local.weights import list_weights, remove_weights


def list_models(arguments: Namespace) -> int:
    console, settings = Console(), read_settings()
    if arguments.provider in (None, "local"):
        _list_local(console, as_json=arguments.json)
    if arguments.provider == "local" or not settings.providers:
        return exits.DONE
    chosen = [one for one in settings.providers if arguments.provider in (None, one.name)]
    if not chosen:
        names = ", ".join(one.name for one in settings.providers)
        raise ConfigurationError(f"there is no provider {arguments.provider!r} set up; there are: {names}")
    found = list(known_models(chosen, settings.models))
    if arguments.json:
        for model in found:
            console.print(msgspec.json.encode(model).decode())
        return exits.DONE
    heads = ("model", "context", "output", "$ in", "$ out", "takes")
    for line in table(heads, [_row(model) for model in found], console.width, right=(1, 2, 3, 4)) if found else ():
        console.print(line)
    listed = {model.name.partition("/")[0] for model in found}
    for provider in chosen:
        if provider.name not in listed and provider.kind != "local":
            console.say(f"{provider.name}: its models are not listed; name one as {provider.name}/MODEL")
    return exits.DONE


def servers(arguments: Namespace) -> int:
    console, found = Console(), find_servers()
    for server in found:
        for model in server.models:
            console.print(f"{server.provider.name}/{model}")
    if not found:
        console.say("no program on this machine serves models at a usual port")
    return exits.DONE


def pull(arguments: Namespace) -> int:
    Console().print(str(pull_weights(arguments.model, folders().data, ProgressLine(sys.stderr))))
    return exits.DONE


def remove(arguments: Namespace) -> int:
    Console().say(f"{remove_weights(arguments.model, folders().data):,} bytes were given back")
    return exits.DONE


def _list_local(console: Console, *, as_json: bool) -> None:
    for one in list_weights(folders().data):
        if as_json:
            fact = {"name": f"local/{one.name}", "bytes": one.bytes, "here": one.path is not None}
            console.print(msgspec.json.encode(fact).decode())
            continue
        fetched = f"{one.partial / 1e6:,.0f} MB of it fetched" if one.partial else "not fetched"
        state = "on this machine" if one.path else f"{fetched}: outrider models pull {one.name}"
        console.print(f"local/{one.name}  {one.title}, {one.bytes / 1e9:.1f} GB, {state}")


def _row(model: KnownModel) -> tuple[str, ...]:
    able = [word for word in ("tools", "images", "reasoning") if getattr(model, word)]
    limits = [tokens_text(limit) if limit else "?" for limit in (model.context_limit, model.output_limit)]
    prices = [f"{price:.2f}" if price is not None else "?" for price in (model.input_price, model.output_price)]
    return (model.name, *limits, *prices, " ".join(able))
