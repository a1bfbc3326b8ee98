"""Who may do what: modes, rules, shell analysis, paths, approvals, trust."""

from outrider.permissions.decide import decide
from outrider.permissions.decision import Decision
from outrider.permissions.paths.contain import Containment, contain

__all__ = ["Containment", "Decision", "contain", "decide"]
