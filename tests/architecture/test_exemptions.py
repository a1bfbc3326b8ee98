"""An exemption is a decision with a reason, not a way around a test."""

import tomllib

from tests.architecture.repository import EXEMPTIONS

RULES = {rule: {"what", "reason"} for rule in ("small_module", "small_folder", "text")}


def test_every_exemption_belongs_to_a_rule_and_gives_a_reason():
    for rule, entries in tomllib.loads(EXEMPTIONS.read_text(encoding="utf-8")).items():
        assert rule in RULES, f"no rule is called {rule!r}; there are {sorted(RULES)}"
        for entry in entries:
            assert set(entry) == RULES[rule], f"{rule}: {entry} needs exactly {sorted(RULES[rule])}"
            assert len(entry["reason"].split()) >= 4, f"{rule}: {entry['what']} deserves a reason in a sentence"
