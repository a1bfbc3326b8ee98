"""Where each setting comes from: a flag, the environment, a file, or nowhere (then it is the default)."""

from collections.abc import Iterator, Mapping

import msgspec

from outrider.app.config.environment import variable_names
from outrider.app.config.reading import read_file
from outrider.app.config.settings import Settings
from outrider.types.agents import Limits

DEFAULT = "default"


class Origin(msgspec.Struct, frozen=True):
    name: str
    value: str
    source: str


def origins(settings: Settings, environ: Mapping[str, str]) -> list[Origin]:
    """Keys are never among them: of a key only the variable is named that holds it."""
    return [*_plain(settings, environ), *_limits(settings), *_rules(settings), *_providers(settings, environ)]


def _plain(settings: Settings, environ: Mapping[str, str]) -> Iterator[Origin]:
    file, source = read_file(settings.folders.config_file).content, str(settings.folders.config_file)
    for name, value, written in (
        ("model", settings.model, file.model),
        ("mode", settings.mode, file.mode),
        ("agent", settings.agents[0].name, file.agent),
    ):
        variable = f"OUTRIDER_{name.upper()}"
        origin = f"${variable}" if name != "agent" and environ.get(variable) else source if written else DEFAULT
        yield Origin(name, value or "(none)", origin)
    yield Origin("agents", ", ".join(agent.name for agent in settings.agents), source if file.agents else DEFAULT)
    for name, folder in (("configuration", settings.folders.config), ("data", settings.data)):
        yield Origin(f"{name} folder", str(folder), "$OUTRIDER_HOME" if environ.get("OUTRIDER_HOME") else DEFAULT)


def _limits(settings: Settings) -> Iterator[Origin]:
    written = read_file(settings.folders.config_file).content.limits
    for name in Limits.__struct_fields__:
        value = getattr(settings.limits, name)
        source = DEFAULT if getattr(written, name) is None else str(settings.folders.config_file)
        yield Origin(f"limits.{name}", "no limit" if value is None else f"{value}", source)


def _rules(settings: Settings) -> Iterator[Origin]:
    own = read_file(settings.folders.config_file).content.rules
    for effect in ("allow", "ask", "deny"):
        for rule in getattr(settings.rules, effect):
            yours = rule in getattr(own, effect)
            yield Origin(
                f"rules.{effect}", rule, str(settings.folders.config_file) if yours else "the folder's own file"
            )


def _providers(settings: Settings, environ: Mapping[str, str]) -> Iterator[Origin]:
    written = read_file(settings.folders.config_file).content.providers
    for provider in settings.providers:
        table = written.get(provider.name)
        names = (table.api_key_env,) if table and table.api_key_env else variable_names(provider.kind)
        key = next((f"key from ${name}" for name in names if environ.get(name)), "without a key")
        address = f" at {provider.base_url}" if provider.base_url else ""
        source = str(settings.folders.config_file) if table else DEFAULT
        yield Origin(f"providers.{provider.name}", f"{provider.kind}{address}, {key}", source)
