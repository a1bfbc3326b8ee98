"""The gitleaks rules: generated example keys are redacted, placeholders are not, and streamed keys are held back."""

import random
import re
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from outrider.permissions.redaction.redactor import HIDDEN_SECRET, RedactingEventFilter, Redactor, redact_patterns
from outrider.permissions.redaction.secret_patterns import GitleaksRule, find_secret_spans, load_rules, shannon_entropy
from outrider.types.events import PartDeltaEvent
from tests.fixtures.cases import for_each

RULES = load_rules()
SCRIPT = Path(__file__).parents[3] / "scripts/update-secret-rules"


def load_script() -> Any:
    loader = SourceFileLoader("update_secret_rules", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


script = load_script()


def examples(rule: GitleaksRule, count: int = 3) -> list[tuple[str, str]]:
    """Random texts that the rule matches, each with its secret; built at run time, so that the file contains no key."""
    random_, pattern, found = random.Random(f"{rule.id} 1"), re.compile(rule.regex, re.ASCII), list[tuple[str, str]]()
    for _ in range(400):
        text = script.example(rule.regex, random_)
        if not any(mark.lower() in text.lower() for mark, _ in rule.marks):
            text = f"{rule.marks[0][0]} {text}"
        match = pattern.search(text)
        if match is None or (span := rule.secret_span(match)) is None:
            continue
        secret = text[slice(*span)]
        if rule.kind != "assigned" or re.search("[0-9]", secret):  # a value without a digit is not a key there
            found.append((text, secret))
        if len(found) == count:
            return found
    raise AssertionError(f"no example for {rule.id}")


@for_each("rule", RULES)
def test_generated_keys_of_every_rule_are_redacted(rule: GitleaksRule):
    for text, secret in examples(rule):
        for written in (text, f"see {text} there", f'{{"a": "{text}"}}', f"{text}, and", f"x\n{text}\n"):
            clean = redact_patterns(written)
            assert secret not in clean, (rule.id, written)
            assert HIDDEN_SECRET in clean


@for_each("rule", RULES)
def test_a_streamed_key_is_redacted_as_the_whole_text_is(rule: GitleaksRule):
    for text, secret in examples(rule, 1):
        for size in (1, 5, 24):
            sent = f"use {text} now and then go on with more words"
            event_filter = RedactingEventFilter(Redactor())
            received = ""
            for start in range(0, len(sent), size):
                event = PartDeltaEvent(part_id="p", delta=sent[start : start + size], session_id="s", message_id="m")
                received += "".join(event.delta for event in event_filter(event))  # type: ignore[attr-defined]
            longest = max((n for n in range(len(secret)) if secret[:n] in received), default=0)
            assert secret not in received, (rule.id, size)
            assert longest < 24, (rule.id, size, secret, received)


@for_each("rule", [rule for rule in RULES if rule.kind == "prefix"])
def test_an_unfinished_key_is_held_back(rule: GitleaksRule):
    text, secret = examples(rule, 1)[0]
    mark = next(mark for mark, _ in rule.marks if mark.lower() in text.lower())
    if mark.lower() not in secret.lower() or " " in secret:
        return
    cut = text[: text.index(secret) + len(secret) * 2 // 3]
    assert len(cut) >= 8
    assert Redactor().redact_complete(f"use it: {cut}").endswith("use it: ")


def test_placeholders_are_not_redacted():
    rule = next(rule for rule in RULES if rule.id == "doppler-api-token")
    prefix = ".".join(("adafruit", "key"))
    for value in ("x" * 32, "a" * 32, "abcdefghijklmnopqrstuvwxyz" + "1" * 6):
        assert find_secret_spans(f"{prefix} = {value}") == []
    assert rule.entropy > 0
    assert shannon_entropy("aaaa") == 0
    assert shannon_entropy("abcd") == 2


@pytest.mark.parametrize(
    "text",
    [
        "sentry sends errors to twitter and discord, see https://docs.sentry.io/platforms/python/configuration",
        "import linear, sonar\nconfluence = build_confluence_client_for_the_workspace()\n",
        "git show 3f2504e04f8941d39a0c0305e82c3301 -- src/heroku_deployment_configuration.py",
        "The test_files of API-documentation, hf_hub_download and sk-learn",
        "asked: the task asks for s.translate and props.applicationProperties",
    ],
)
def test_ordinary_text_with_keywords_stays(text: str):
    assert redact_patterns(text) == text


@for_each("rule", RULES[::7])
def test_adversarial_text_takes_linear_time(rule: GitleaksRule):
    found = [text for text, _ in examples(rule)]
    start = time.process_time()
    for text in script.adversarial_texts(rule.marks, found)[:4]:
        find_secret_spans(text)
    assert time.process_time() - start < 8


def test_the_generic_rule_and_rules_for_file_names_are_left_out():
    ids = {rule.id for rule in RULES}
    assert len(ids) == len(RULES) > 200
    assert not ids & {"generic-api-key", "pkcs12-file", "kubernetes-secret-yaml"}
    assert (Path(load_rules.__code__.co_filename).parent / "GITLEAKS_LICENSE").read_text().startswith("MIT License")


@pytest.mark.parametrize(
    ("go", "python"),
    [
        (r"a(?i)b|c", r"a(?i:b)|(?i:c)"),
        (r"(x(?i)[a-z]{2})\z", r"(x(?i:[a-z]{2}))\Z"),
        (r"[[:alnum:]]+$", r"[A-Za-z0-9]{1,2000}\Z"),
        (r"(?i)\b(key-[a-f$]{3,})", r"(?i:\b(key-[a-f$]{3,2000}))"),
    ],
)
def test_go_expressions_are_translated(go: str, python: str):
    assert script.translate(go) == python
    re.compile(python)
