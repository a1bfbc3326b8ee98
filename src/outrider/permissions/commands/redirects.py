"""Which redirects leave every file as it was."""

from outrider.permissions.programs.place import Place
from outrider.permissions.shell.lexing import Redirect
from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg

_NOWHERE = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


def refuse_redirect(redirect: Redirect, targets: list[Arg], place: Place) -> None:
    """Raises Unclear for a redirect that could write, or read what may not be read unasked."""
    operator = redirect.operator
    if operator in {"<<", "<<<"}:
        return
    target = targets[0].text if len(targets) == 1 else None
    if operator in {"<&", ">&"} and target is not None and (target == "-" or target.rstrip("-").isdigit()):
        return
    if operator == "<" and target is not None:
        place.check(targets[0])
        return
    if operator in {">", ">>", ">|", "&>", "&>>", ">&"} and target in _NOWHERE:
        return
    raise Unclear(f"it redirects with {operator} {redirect.shown}")
