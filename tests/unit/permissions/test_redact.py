"""No secret passes the one place where texts are redacted."""

import json
import time

import pytest

from outrider.permissions.texts.redact import HIDDEN, Redactor, hide_patterns, is_secret_name, secret_values

LONG = "a1B2" * 10


@pytest.mark.parametrize(
    "secret",
    [
        f"sk-{LONG}",
        f"sk-ant-api03-{LONG}",
        f"sk-proj-{LONG}",
        f"ghp_{LONG}",
        f"gho_{LONG}",
        f"github_pat_{LONG}",
        f"AIza{LONG}",
        f"xai-{LONG}",
        f"gsk_{LONG}",
        f"hf_{LONG}",
        "AKIA" + "A1B2C3D4E5F6G7H8",
        f"xoxb-{LONG}",
        f"ya29.{LONG}",
        f"glpat-{LONG}",
        f"npm_{LONG}",
        f"pypi-{LONG}",
        f"eyJhbGciOiJIUzI1NiJ9.{LONG}.{LONG}",
        f"nvapi-{LONG}",
        f"SG.{LONG}.{LONG}",
    ],
)
def test_what_looks_like_a_key_is_hidden_wherever_it_stands(secret: str):
    for text in (
        secret,
        f"key={secret}",
        f'{{"a": "{secret}"}}',
        f"see {secret}, ok",
        f"https://x.example/?k={secret}",
    ):
        assert secret not in hide_patterns(text)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefghijklmnop",
        "Basic dXNlcjpwYXNzd29yZA==",
        "postgres://user:hunter2hunter2@db/x",
        "password = hunter2hunter2",
        "API_KEY=hunter2hunter2",
        'secret: "hunter2hunter2"',
        "client_secret=hunter2hunter2",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2hunter2\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2hunter2",
    ],
)
def test_secrets_known_by_their_surroundings_are_hidden(text: str):
    clean = hide_patterns(text)
    assert HIDDEN in clean
    assert not any(secret in clean for secret in ("abcdefghijklmnop", "dXNlcjpwYXNz", "hunter2"))


@pytest.mark.parametrize(
    "text",
    [
        "the key of the matter",
        "sk-short",
        "a token of trust",
        "max_tokens = 100",
        '"input_tokens":123456789',
        "secret: 1234567890",
        "x = y",
        "git log",
    ],
)
def test_ordinary_text_is_left_alone(text: str):
    assert hide_patterns(text) == text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ANTHROPIC_API_KEY", True),
        ("GITHUB_TOKEN", True),
        ("DB_PASSWORD", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("x-api-key", True),
        ("Authorization", True),
        ("set-cookie", True),
        ("PATH", False),
        ("HOME", False),
        ("LANG", False),
        ("KEYBOARD_LAYOUT", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("SSH_AUTH_SOCK", False),
        ("MONKEY", False),
    ],
)
def test_names_say_whether_a_value_is_secret(name: str, secret: bool):
    assert is_secret_name(name) is secret


def test_values_of_secret_variables_are_hidden_even_when_they_look_like_nothing():
    environment = {
        "MY_TOKEN": "plain words here",
        "OTHER_SECRET": "plain words here and more",
        "PATH": "/usr/bin",
        "A_KEY": "short",
    }
    assert secret_values(environment) == ["plain words here and more", "plain words here"]
    redactor = Redactor.of_environment(environment)
    assert redactor.text("x plain words here and more y") == f"x {HIDDEN} y"
    assert redactor.text("x plain words here y /usr/bin short") == f"x {HIDDEN} y /usr/bin short"


def test_two_hundred_canaries_are_hidden_in_values_of_any_shape():
    canaries = {f"SERVICE_{number}_TOKEN": f"canary value {number:03d} {'xyz' * 3}" for number in range(200)}
    redactor = Redactor.of_environment(canaries)
    values = list(canaries.values())
    event = {
        "text": " ".join(values[:50]),
        "list": values[50:100],
        "deep": [{"a": [values[100:150]]}],
        **dict.fromkeys(values[150:], 1),
    }
    clean = json.dumps(redactor.value(event))
    assert not any(value in clean for value in values)


def test_a_field_named_like_a_secret_loses_its_text_and_nothing_else():
    assert Redactor().value({"password": "hi", "count": 3, "keys": None, "max_tokens": 5}) == {
        "password": HIDDEN,
        "count": 3,
        "keys": None,
        "max_tokens": 5,
    }


def test_nothing_known_means_only_patterns_are_hidden():
    assert Redactor().text("plain") == "plain"
    assert Redactor(["tiny"]).text("tiny") == "tiny"


@pytest.mark.parametrize(
    "hostile",
    [
        "_key=",
        "token:",
        "authorization:",
        "sk-",
        "eyJaaaaaaaa.",
        "-----BEGIN A PRIVATE KEY-----",
        "hooks.",
        "a://b:",
        " -u a:",
    ],
)
def test_no_text_takes_long_to_redact(hostile: str):
    text = hostile * (30_000 // len(hostile))
    start = time.process_time()
    Redactor().text(text)
    Redactor().so_far(text)
    assert time.process_time() - start < 1.5
