"""The redactor replaces secrets of every known form."""

import base64
import html
import json
import time
from urllib.parse import quote, quote_plus

import msgspec
import pytest

from outrider.permissions.redaction.redactor import (
    HIDDEN_SECRET,
    Redactor,
    is_secret_name,
    redact_patterns,
    secret_values,
)
from outrider.types.codec import UnknownPart
from outrider.types.parts import ReasoningPart, ToolPart
from outrider.types.tool_state import RunningTime, ToolRunning
from tests.fixtures.cases import for_each

LONG = "a1B2" * 10


@for_each(
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
def test_text_that_looks_like_a_key_is_hidden_at_any_position(secret: str):
    for text in (
        secret,
        f"key={secret}",
        f'{{"a": "{secret}"}}',
        f"see {secret}, ok",
        f"https://x.example/?k={secret}",
    ):
        assert secret not in redact_patterns(text)


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
    clean = redact_patterns(text)
    assert HIDDEN_SECRET in clean
    assert not any(secret in clean for secret in ("abcdefghijklmnop", "dXNlcjpwYXNz", "hunter2"))


CRYPT = "./aB9" * 20
SEED = " ".join(["legal", "winner", "thank", "year"] * 3)


@for_each(
    ("text", "secret"),
    [
        ("mysql -u root -phunterhunter db", "hunterhunter"),
        ("mysqldump -h db -phunterhunter shop", "hunterhunter"),
        ("sshpass -p hunterhunter ssh host", "hunterhunter"),
        ("docker login -u me -p hunterhunter registry", "hunterhunter"),
        ("redis-cli -h db -a hunterhunter ping", "hunterhunter"),
        ("ldapsearch -x -w hunterhunter", "hunterhunter"),
        ("unzip -P hunterhunter f.zip", "hunterhunter"),
        ("tool --password hunterhunter", "hunterhunter"),
        ("tool --db-password='hunterhunter' x", "hunterhunter"),
        ("tool --api-key hunterhunter", "hunterhunter"),
        ("db.local:5432:shop:admin:hunterhunter", "hunterhunter"),
        ("<password>hunterhunter</password>", "hunterhunter"),
        ("<apiKey>hunterhunter</apiKey>", "hunterhunter"),
        ("GET /next?go=%2Flogin%3Fpassword%3Dhunterhunter%26x", "hunterhunter"),
        ("state=api_key%3dhunterhunter&x=1", "hunterhunter"),
        ("password: 'hunterhunter'", "hunterhunter"),
        ("db.password=hunterhunter\n", "hunterhunter"),
        (f"hash $2b$12${CRYPT[:53]} end", CRYPT[:53]),
        (f"root:$6$saltsalt${CRYPT[:86]}:19000", CRYPT[:86]),
        (f"me:$y$j9T$saltsalt${CRYPT[:43]}:1", CRYPT[:43]),
        (f"$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ${'aB9+' * 8}", "aB9+" * 8),
        (f"pbkdf2_sha256$600000$saltsalt${'aB9+' * 11}=", "aB9+" * 11),
        (f"my seed phrase: {SEED}", SEED),
        (f"MNEMONIC='{SEED}'", SEED),
        (base64.b64encode(f"ghp_{LONG}".encode()).decode(), "Z2hwX"),
        ("data: " + base64.b64encode(b"-----BEGIN RSA PRIVATE KEY-----\nhunter").decode(), "LS0tLS1"),
    ],
)
def test_passwords_of_letters_hashes_and_encoded_keys_are_hidden_where_they_are_recognizable(text: str, secret: str):
    assert secret not in redact_patterns(text)
    assert secret not in redact_patterns(f"{'words. ' * 400}\n{text}\n{'more-words ' * 400}")
    assert secret not in Redactor().redact_text(json.dumps({"out": text})), "escaped"


@pytest.mark.parametrize(
    "text",
    [
        "mkdir -p build/output && cp -p source target",
        "mysql -u root -p database",
        "tool --password PASSWORD --token TOKEN",
        "a multi-token approach to the secret-sharing problem",
        '{"password": "required", "type": "password"}',
        "awk '{print $1$2}' file; echo $6$HOME",
        "the recovery phrase has twelve words that you should write down and never ever share",
        "<key>short words</key> and <li>password</li>",
        "localhost:5432: connection refused",
    ],
)
def test_options_elements_and_messages_without_a_secret_stay(text: str):
    assert redact_patterns(text) == text


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
    assert redact_patterns(text) == text


@for_each(
    ("name", "secret"),
    [
        ("ANTHROPIC_API_KEY", True),
        ("GITHUB_TOKEN", True),
        ("DB_PASSWORD", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("x-api-key", True),
        ("Authorization", True),
        ("set-cookie", True),
        ("accessToken", True),
        ("authtoken", True),
        ("clientSecret", True),
        ("secretid", True),
        ("X-ApiKey", True),
        ("Ocp-Apim-Subscription-Key", True),
        ("signingKey", True),
        ("clientkey2", True),
        ("publickey", False),
        ("X-Amz-Signature", True),
        ("sig", True),
        ("OAuth2", True),
        ("XAuth", True),
        ("X-Authentication", True),
        ("GPG_PASSPHRASE", True),
        ("KEYBOARD_API_KEY", True),
        ("author", False),
        ("passWord", True),
        ("DB_PassWord", True),
        ("passPhrase", True),
        ("pubKey", False),
        ("X-Authority", False),
        ("keyboard", False),
        ("hotkeys", False),
        ("tokenizer", False),
        ("publicKey", False),
        ("XAUTHORITY", False),
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
    redactor = Redactor.from_environment(environment)
    assert redactor.redact_text("x plain words here and more y") == f"x {HIDDEN_SECRET} y"
    assert redactor.redact_text("x plain words here y /usr/bin short") == f"x {HIDDEN_SECRET} y /usr/bin short"


def test_two_hundred_canaries_are_hidden_in_values_of_any_shape():
    canaries = {f"SERVICE_{number}_TOKEN": f"canary value {number:03d} {'xyz' * 3}" for number in range(200)}
    redactor = Redactor.from_environment(canaries)
    values = list(canaries.values())
    event = {
        "text": " ".join(values[:50]),
        "list": values[50:100],
        "deep": [{"a": [values[100:150]]}],
        **dict.fromkeys(values[150:], 1),
    }
    clean = json.dumps(redactor.redact_value(event))
    assert not any(value in clean for value in values)


def test_a_field_named_like_a_secret_loses_its_text_and_nothing_else():
    assert Redactor().redact_value({"password": "hi", "count": 3, "keys": None, "max_tokens": 5}) == {
        "password": HIDDEN_SECRET,
        "count": 3,
        "keys": None,
        "max_tokens": 5,
    }


def test_nothing_known_means_only_patterns_are_hidden():
    assert Redactor().redact_text("plain") == "plain"
    assert Redactor(["tiny"]).redact_text("tiny") == "tiny"


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
    Redactor().redact_text(text)
    Redactor().redact_complete(text)
    assert time.process_time() - start < 10  # far less on an idle machine


class Note(msgspec.Struct, frozen=True):
    id: str
    text: str
    inner: "Note | None" = None
    provider_state: dict[str, str] = {}


class Mine:
    """A part kind as a user may write it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def to_dict(self) -> dict[str, str]:
        return {"text": self.text}

    @classmethod
    def from_dict(cls, value: dict[str, str]) -> "Mine":
        return cls(value["text"])


def test_nested_values_are_redacted_and_other_values_stay_the_same_objects():
    redactor = Redactor(["correct horse battery"])
    plain = {"a": [1, "x", Note("1", "y")], "b": ("z",)}
    assert redactor.redact_value(plain) is plain
    note = Note("1", "x", Note("2", "the correct horse battery"), {"signature": "correct horse battery"})
    clean = redactor.redact_value({"a": (note,)})
    assert clean == {"a": (Note("1", "x", Note("2", f"the {HIDDEN_SECRET}"), {"signature": "correct horse battery"}),)}
    assert note.inner is not None
    assert note.inner.text == "the correct horse battery"


def test_parts_of_unknown_and_own_kinds_are_redacted_too():
    redactor = Redactor(["correct horse battery"])
    unknown = UnknownPart({"type": "new", "said": ["correct horse battery"]})
    assert redactor.redact_value(unknown) == UnknownPart({"type": "new", "said": [HIDDEN_SECRET]})
    same = UnknownPart({"type": "new"})
    assert redactor.redact_value(same) is same
    assert redactor.redact_value(Mine("correct horse battery")).text == HIDDEN_SECRET
    mine = Mine("x")
    assert redactor.redact_value(mine) is mine


def test_a_picture_in_letters_is_left_alone_and_text_that_starts_like_one_is_not():
    picture = "data:image/png;base64," + "QUtJQUFBQUFBQUFBQUFB" * 400
    assert Redactor().redact_value(picture) is picture
    assert Redactor().redact_value("QUtJ" * 2000) == "QUtJ" * 2000
    assert HIDDEN_SECRET in Redactor().redact_value("data: {'key': 'ghp_" + "a1B2" * 9 + "'}" + " " * 5000)


def test_a_secret_is_hidden_however_it_is_written():
    secret = 'päss "word" & \\ more'
    redactor = Redactor([secret])
    for form in (
        secret,
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        html.escape(secret),
    ):
        assert "word" not in redactor.redact_text(f"x {form} y"), form


def test_each_long_line_of_a_secret_is_one():
    redactor = Redactor(["-- begin --\nMIIEvQIBADANBgkqhkiG9w0B\nshort\n-- end --"])
    assert redactor.redact_text("got MIIEvQIBADANBgkqhkiG9w0B only") == f"got {HIDDEN_SECRET} only"
    assert redactor.redact_text("a short one") == "a short one"


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("postgres", False),
        ("development", False),
        ("disabled", False),
        ("averylongwordindeed", True),
        ("postgres1", True),
        ("/home/me/keys/id_rsa", False),
        ("~/keys/key.json", False),
        ("/" + "x" * 60, True),
        ("short1", False),
    ],
)
def test_words_paths_and_switches_are_no_secrets_though_their_variables_sound_like_it(value: str, is_secret: bool):
    assert bool(secret_values({"DB_PASSWORD": value})) is is_secret


def test_bytes_are_searched_where_they_are():
    raw = b"\xff\xfe ghp_" + b"a1B2" * 9 + b" p\xc3\xa4ssword one " + b"\x00"
    spans = Redactor(["pässword one"]).find_spans_in_bytes(raw)
    assert [raw[start:end] for start, end in spans] == [b"ghp_" + b"a1B2" * 9, b"p\xc3\xa4ssword one"]


def test_an_unfinished_text_is_published_without_a_possible_start_of_a_secret():
    redactor = Redactor(["correct horse battery"])
    assert redactor.redact_complete("say correct ho") == "say "
    assert redactor.redact_complete("say correct horses") == "say correct horses"
    assert redactor.redact_complete("say cor") == "say cor"
    assert redactor.redact_complete("token: ghp_abc") == "token: "
    assert redactor.redact_complete("-----BEGIN RSA PRIVATE KEY-----\nMII") == ""
    assert redactor.redact_draft(Note("correct ho", "say correct ho")) == Note("correct ho", "say ")


def test_the_draft_of_a_running_call_has_its_complete_input_and_ids():
    """After a crash the draft is all that is stored of the call."""
    vendor = {"openai": {"id": "fc_01a1e51b-10a7-749c-9073-426383d238f9"}}
    command = "cat src/outrider/permissions/redaction/redactor"
    running = ToolRunning({"command": command}, RunningTime(1), metadata={"output": "say correct ho"})
    call = ToolPart("call-1", "shell", running, metadata=vendor)
    draft = Redactor(["correct horse battery"]).redact_draft(call)
    assert (draft.state.input, draft.metadata) == ({"command": command}, vendor)
    assert draft.state.metadata == {"output": "say "}
    reasoning = ReasoningPart("say correct ho", provider_state=vendor)
    draft = Redactor(["correct horse battery"]).redact_draft(reasoning)
    assert (draft.text, draft.provider_state) == ("say ", vendor)


def test_what_was_redacted_once_is_left_alone():
    for text in ("password = hunter2hunter2", "API_KEY=abcdefgh12", 'token: "abcdefgh12"', "https://u:pw1234567@h/"):
        clean = redact_patterns(text)
        assert HIDDEN_SECRET in clean
        assert redact_patterns(clean) == clean


@for_each(
    "text",
    [
        "api_key = os.environ['X']",
        "token = get_token(1)",
        "password: str = Field(min_length=8)",
        "def key(self): return self._key[0]",
        "Basic authentication is required",
        "the Bearer of this letter",
        "key-value-store-implementation",
        "sk-learn-compatible-estimators",
        "npm_config_registry_and_more",
        "http://localhost:8000/path",
        "git@github.com:owner/repo.git",
        "TOKEN_TYPE = 'gen_ai.token.type'",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "keyboard=qwerty1234",
        "secretary: Jane Doe 1234",
    ],
)
def test_code_and_prose_are_left_alone(text: str):
    assert redact_patterns(text) == text


@for_each(
    ("text", "secret"),
    [
        ("mysql -u root:hunter2!", "hunter2!"),
        ("curl --user me:s3cr3tpass https://x", "s3cr3tpass"),
        ("https://abcdefghij0123456789@host/x", "abcdefghij0123456789"),
        ("machine x login y password abc12345", "abc12345"),
        ("Set-Cookie: session=abc12345; Path=/", "abc12345"),
        ("Authorization: ApiKey abc12345def", "abc12345def"),
        ("https://hooks.slack.com/services/T0AAAAAAA/B0BBBBBBB/abcdefghijklmnop", "abcdefghijklmnop"),
        ("https://discord.com/api/webhooks/123456/abcdefghijklmnopqrst", "abcdefghijklmnopqrst"),
        ("https://x.example/?X-Amz-Signature=abcdef0123456789", "abcdef0123456789"),
        ("?sig=abcdefgh0123", "abcdefgh0123"),
        ("AccountKey=abcdefgh0123==", "abcdefgh0123"),
        ("export DB_PASSWORD=hunterhunter", "hunterhunter"),
        ("private_key: 'abcd-efgh-ijkl'", "abcd-efgh-ijkl"),
        ('{"password": "correct-horse-battery"}', "correct-horse-battery"),
        ('{\\"password\\": \\"correct-horse-1\\"}', "correct-horse-1"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\\nabcdef\\n-----END OPENSSH PRIVATE KEY-----", "abcdef"),
    ],
)
def test_secrets_are_known_by_the_words_before_them(text: str, secret: str):
    clean = redact_patterns(text)
    assert secret not in clean
    assert HIDDEN_SECRET in clean


@pytest.mark.parametrize(
    "text",
    [
        "İİİ password = {}",
        "İ API_KEY={}",
        "İ Authorization: {}",
        "a://:{}@",
        "MTA1Mjk0NTk5NjQ1NjI0NzI5{}",
    ],
)
def test_a_secret_is_hidden_exactly_in_any_surrounding_text(text: str):
    secret = ".Gabcde.abcdefghijklmnopqrstuvwxyz012345" if text.startswith("MTA1") else "hunter2hunter2"
    assert redact_patterns(text.format(secret)) == text.format(HIDDEN_SECRET)


@pytest.mark.parametrize(
    "text", ["AKIAsmallletterscount", "SKabcdef", "İstanbul is a city", "a.bcdefg.h", "akia1234567890123456"]
)
def test_what_only_resembles_a_key_is_left_alone(text: str):
    assert redact_patterns(text) == text


def test_several_secrets_are_hidden_one_by_one_and_those_that_touch_together():
    redactor = Redactor(["first secret", "second secret", "secret second", "12345678"])
    assert redactor.redact_text("a first secret b second secret c") == f"a {HIDDEN_SECRET} b {HIDDEN_SECRET} c"
    assert redactor.redact_text("first secretsecond secret") == HIDDEN_SECRET
    assert redactor.redact_text("x 12345678 y 12345678") == f"x {HIDDEN_SECRET} y {HIDDEN_SECRET}"
    known = f"key ghp_{LONG}"
    assert Redactor([known]).redact_text(f"a {known} b ghp_{LONG} c") == f"a {HIDDEN_SECRET} b {HIDDEN_SECRET} c"
    assert Redactor([f"ghp_{LONG[:20]}"]).redact_text(f"a ghp_{LONG} b") == f"a {HIDDEN_SECRET} b"


def test_every_place_of_a_secret_in_bytes_is_found():
    redactor = Redactor(["pässword one"])
    form = "pässword one".encode()
    assert redactor.find_spans_in_bytes(form + form + b" " + form) == [(0, 26), (27, 40)]
    assert redactor.find_spans_in_bytes(b"nothing") == []


def test_the_secrets_that_are_given_are_hidden_in_addition_to_those_of_the_environment():
    redactor = Redactor.from_environment({"A_TOKEN": "one of them 1"}, ["another of them"])
    assert redactor.redact_text("one of them 1, another of them") == f"{HIDDEN_SECRET}, {HIDDEN_SECRET}"


BARE = "wJalrXUtnFEMIxK7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    "text",
    [
        f"AKIAIOSFODNN7EXAMPLE {BARE}",
        f"User name,Access key ID,Secret access key\nbob,AKIAIOSFODNN7EXAMPLE,{BARE}",
        f'id "ASIAIOSFODNN7EXAMPLE" secret "{BARE}"',
        f"Secret access key\n{BARE}",
        f"the aws key is {BARE}",
        f"| secret | {BARE} |",
        f"aws configure set aws_secret_access_key {BARE}",
    ],
)
def test_a_key_of_forty_characters_is_known_by_the_words_before_it(text: str):
    assert BARE not in redact_patterns(text)
    assert BARE[:6] not in Redactor().redact_complete(text[: text.index(BARE) + 6])  # while it is streamed


@pytest.mark.parametrize(
    "text",
    [
        "secret commit 356a192b7913b04c54574d18c28d46e6395428ab",
        f"AKIAIOSFODNN7EXAMPLE was revoked. A long sentence follows, and much later {BARE}",
        "secret src/Components/Deployments1/Access/Views.tsx",
        f"integrity {BARE}",
    ],
)
def test_other_words_of_forty_characters_stay(text: str):
    assert redact_patterns(text).endswith(text[-40:])


@pytest.mark.parametrize("secret", [f"ghp_{LONG}", f"sk-ant-api03-{LONG}", "AKIAIOSFODNN7EXAMPLE", f"xoxb-{LONG}"])
def test_a_key_that_is_written_backwards_is_hidden(secret: str):
    assert secret[::-1] not in redact_patterns(f"echo {secret[::-1]} | rev")
    assert "54321eulav-nwo" not in Redactor(["own-value12345"]).redact_text("rev 54321eulav-nwo")
