"""Values of any shape lose their secrets and keep everything else."""

import msgspec

from outrider.permissions.redaction.redactor import HIDDEN_SECRET, Redactor
from outrider.types.parts import TextPart


def test_only_the_very_part_that_was_looked_at_is_known_to_be_clean():
    redactor = Redactor(["correct horse battery"])
    clean, secret = TextPart("nothing"), TextPart("the correct horse battery")
    assert not redactor.is_clean(clean)
    redactor.redact_value(clean)
    assert not redactor.is_clean(clean)
    assert redactor.redact_for_publish(clean) is clean
    hidden = redactor.redact_for_publish(secret)
    assert redactor.is_clean(clean)
    assert not redactor.is_clean(TextPart("nothing", id=clean.id))
    assert not redactor.is_clean(secret)
    assert isinstance(hidden, TextPart)
    assert hidden.text == f"the {HIDDEN_SECRET}"


class Inner(msgspec.Struct, frozen=True):
    count: int
    text: str | None = None


class Outer(msgspec.Struct, frozen=True):
    inner: Inner
    maybe: Inner | None = None
    either: int | str = 0
    anything: object = None
    type: str = "kept"


def test_every_field_that_can_hold_text_is_redacted():
    redactor = Redactor(["correct horse battery"])
    secret, hidden = Inner(1, "correct horse battery"), Inner(1, HIDDEN_SECRET)
    assert redactor.redact_value(Outer(secret)) == Outer(hidden)
    assert redactor.redact_value(Outer(Inner(1), secret)) == Outer(Inner(1), hidden)
    assert redactor.redact_value(Outer(Inner(1), either="correct horse battery")) == Outer(
        Inner(1), either=HIDDEN_SECRET
    )
    assert redactor.redact_value(Outer(Inner(1), anything=["correct horse battery"])) == Outer(
        Inner(1), anything=[HIDDEN_SECRET]
    )
    original = Outer(Inner(1), type="correct horse battery")
    assert redactor.redact_value(original) is original


def test_values_keep_their_kind_and_what_holds_no_text_stays():
    redactor = Redactor(["correct horse battery"])
    assert redactor.redact_value(["correct horse battery", 1]) == [HIDDEN_SECRET, 1]
    assert redactor.redact_value(("correct horse battery", None)) == (HIDDEN_SECRET, None)
    assert redactor.redact_value({1: "correct horse battery", "b": 2.5}) == {1: HIDDEN_SECRET, "b": 2.5}
    assert redactor.redact_value({"correct horse battery": "x"}) == {HIDDEN_SECRET: "x"}
    assert redactor.redact_value({"password": "", "a": {}}) == {"password": "", "a": {}}
    for value in (3, True, None, b"bytes", {}, {"a": {1: "x"}}, "text"):
        assert redactor.redact_value(value) is value


def test_a_text_field_that_holds_something_else_is_redacted_too():
    redactor = Redactor(["correct horse battery"])
    redactor.redact_value(Inner(1, "x"))
    assert redactor.redact_value(Inner(1, ["correct horse battery"])) == Inner(1, [HIDDEN_SECRET])  # type: ignore[arg-type]
    assert redactor.redact_value(Inner(1, ("correct horse battery",))) == Inner(1, (HIDDEN_SECRET,))  # type: ignore[arg-type]
    assert redactor.redact_value(Inner(1, Inner(2, "correct horse battery"))) == Inner(1, Inner(2, HIDDEN_SECRET))  # type: ignore[arg-type]


def test_texts_are_distinguished_however_many_were_seen():
    redactor = Redactor(["correct horse battery"])
    for number in range(3_000):
        assert redactor.redact_value(Inner(number, f"text {number}")) == Inner(number, f"text {number}")
        secret = f"{number} correct horse battery"
        assert redactor.redact_value(Inner(number, secret)) == Inner(number, f"{number} {HIDDEN_SECRET}")
        assert redactor.redact_value({secret: number}) == {f"{number} {HIDDEN_SECRET}": number}
