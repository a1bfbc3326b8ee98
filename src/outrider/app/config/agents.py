"""The agents of the configuration, and the one that is there without any."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.app.config.models import Providers
from outrider.app.config.prompts import default_instructions
from outrider.app.config.tables import AgentTable
from outrider.errors import ConfigurationError
from outrider.types.agents import Agent, Limits, Mode

DEFAULT = "outrider"
LARGEST = 200_000
_PLAIN = ("max_output_tokens", "reasoning", "reasoning_effort", "reasoning_budget", "temperature", "stream", "tools")


class AgentBuilder:
    """What agents have in common: the model, mode and limits of those that name none."""

    def __init__(
        self, providers: Providers, *, model: str, mode: Mode, limits: Limits, prompts: Path, source: str
    ) -> None:
        self._providers = providers
        self._model = model
        self._mode: Mode = mode
        self._limits = limits
        self._prompts = prompts
        self._source = source

    def build(self, tables: Mapping[str, AgentTable]) -> list[Agent]:
        return [self._agent(name, table) for name, table in tables.items()]

    def _agent(self, name: str, table: AgentTable) -> Agent:
        where = f"{self._source}: agents.{name}"
        provider, model = self._routed(table.model, f"{where}.model")
        given: dict[str, Any] = {field: value for field in _PLAIN if (value := getattr(table, field)) is not None}
        rules = {kind: found for kind in ("allow", "ask", "deny") if (found := getattr(table.permissions, kind))}
        return Agent(
            name,
            self._instructions(table, where) or default_instructions(self._prompts),
            model,
            provider,
            role=table.role,
            mode=table.mode or self._mode,
            permissions=rules,
            limits=table.limits.over(self._limits) if table.limits else self._limits,
            extra=table.extra,
            **given,
        )

    def _routed(self, model: str | None, where: str) -> tuple[str, str]:
        if model is not None:
            return self._providers.route(model, where)
        return self._providers.route(self._model, "model") if self._model else ("", "")

    def _instructions(self, table: AgentTable, where: str) -> str | None:
        if table.instructions is not None and table.instructions_file is not None:
            raise ConfigurationError(f"{where}: has both instructions and instructions_file; one of them is enough")
        if table.instructions_file is None:
            return table.instructions
        path = self._prompts.parent / Path(table.instructions_file).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                return file.read(LARGEST)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}.instructions_file: {path} cannot be read: {error}") from error
