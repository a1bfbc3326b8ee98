"""Addresses of servers as users write them, and which token is sent to which server."""

from pathlib import Path

import pytest

from outrider.errors import ConfigurationError
from outrider.remote.client import resolve_server


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "token").write_text("the-kept-one\n")
    return {"OUTRIDER_HOME": str(tmp_path), "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("http://127.0.0.1:8765/", "http://127.0.0.1:8765"),
        ("localhost:8765", "http://localhost:8765"),
        ("http://[::1]:8765", "http://[::1]:8765"),
        ("http+unix:///run/o.sock", "http+unix:///run/o.sock"),
        ("unix:/run/o.sock", "http+unix:///run/o.sock"),
        ("/run/o.sock", "http+unix:///run/o.sock"),
    ],
)
def test_a_server_of_this_machine_gets_the_token_of_its_file(written, url, environ):
    place = resolve_server(written, token=None, environ=environ)
    assert (place.url, place.token, place.is_local) == (url, "the-kept-one", True)


def test_what_is_reported_goes_before_what_is_found(environ):
    link = "http://127.0.0.1:8765/?token=from-the-link"
    assert resolve_server(link, token=None, environ=environ).token == "from-the-link"
    environment = {**environ, "OUTRIDER_SERVER_TOKEN": "from-the-environment"}
    assert resolve_server(link, token=None, environ=environment).token == "from-the-environment"
    assert resolve_server(link, token="given", environ=environment).token == "given"
    assert "from-the-link" not in resolve_server(link, token="given", environ=environment).url


def test_the_token_of_this_machine_s_server_is_never_sent_to_another(environ):
    with pytest.raises(ConfigurationError, match="OUTRIDER_SERVER_TOKEN"):
        resolve_server("https://build.example:8443", token=None, environ=environ)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("http://build.example:8765", "https"),
        ("http://127.0.0.1:8765/api", "not the address of a server"),
        ("unix:o.sock", "absolute"),
        ("ftp://127.0.0.1", "not a valid HTTP URL"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(written, message, environ):
    with pytest.raises(ConfigurationError, match=message):
        resolve_server(written, token="x", environ=environ)
