"""Rules as people write them: one that cannot be read is an error, one for a tool that nobody knows gets a notice."""

from collections.abc import Iterator

from outrider.app.config.reading import closest
from outrider.app.config.tables import RulesTable
from outrider.errors import ConfigurationError


def check_rules(rules: RulesTable, where: str) -> tuple[str, ...]:
    """`where` is what errors and notices call the place. A misspelt allow would only never hold; a misspelt deny would
    not be noticed before it is too late."""
    if rules == RulesTable():
        return ()
    return tuple(notice for kind in RulesTable.__struct_fields__ for notice in _check(rules, kind, where))


def _check(rules: RulesTable, kind: str, where: str) -> Iterator[str]:
    from outrider.permissions.rules import parse_rule
    from outrider.permissions.tools import TOOLS, canonical

    for text in getattr(rules, kind):
        rule = parse_rule(text)
        if rule.broken:
            raise ConfigurationError(f"{where}.{kind}: {text!r} is not a rule: {rule.broken}; write tool(pattern)")
        hint = closest(canonical(rule.tool), TOOLS)
        if hint and canonical(rule.tool) not in TOOLS:
            yield f"{where}.{kind}: {text!r} is for a tool that Outrider does not bring along{hint}"
