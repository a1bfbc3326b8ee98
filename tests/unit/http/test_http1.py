"""HTTP/1.1 on plain bytes: addresses, heads and bodies, whole, cut anywhere and damaged."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigurationError, NetworkError
from outrider.http import http1 as head
from outrider.http.http1 import BodyReader, HttpAddress, ResponseHead, create_body_reader


def answered(status: int = 200, version: str = "HTTP/1.1", **headers: str) -> ResponseHead:
    lines = [f"{version} {status} Fine", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return head.parse_head("\r\n".join([*lines, "", ""]).encode())


def fed(body: BodyReader, data: bytes, size: int) -> bytes:
    pieces = [body.feed(data[start : start + size]) for start in range(0, len(data), size)]
    body.close()
    return b"".join(pieces)


CHUNKED = b"5\r\nhello\r\n1;name=value\r\n \r\nA\r\n0123456789\r\n0\r\nx-trailer: y\r\n\r\n"


@given(size=st.integers(1, len(CHUNKED)))
def test_a_chunked_body_is_the_same_wherever_it_is_cut(size: int):
    body = create_body_reader(answered(transfer_encoding="chunked"))
    assert fed(body, CHUNKED, size) == b"hello 0123456789"
    assert body.ended


PACKED = {
    "gzip": gzip.compress,
    "x-gzip": lambda text: gzip.compress(text[:20]) + gzip.compress(text[20:]) + b"\0\0",
    "deflate": zlib.compress,
    "Deflate": lambda text: zlib.compress(text, wbits=-15),
}


@given(text=st.binary(max_size=3000), size=st.integers(1, 700), packing=st.sampled_from(sorted(PACKED)))
def test_a_packed_body_is_unpacked_wherever_it_is_cut(text: bytes, size: int, packing: str):
    packed = PACKED[packing](text)
    body = create_body_reader(answered(content_encoding=packing, content_length=str(len(packed))))
    assert fed(body, packed, size) == text


def test_a_small_body_that_unpacks_to_a_huge_one_is_not_unpacked():
    packer = zlib.compressobj(wbits=31)
    packed = b"".join([*(packer.compress(bytes(2**20)) for _ in range(65)), packer.flush()])
    with pytest.raises(NetworkError, match="decompresses to over") as caught:
        create_body_reader(answered(content_encoding="gzip", content_length=str(len(packed)))).feed(packed)
    assert not caught.value.retryable


def test_what_follows_the_end_of_a_body_is_stored_apart():
    body = create_body_reader(answered(content_length="5"))
    assert body.feed(b"helloHTTP/1.1 200") == b"hello"
    assert (body.ended, body.has_surplus) == (True, True)
    body = create_body_reader(answered(transfer_encoding="Chunked"))
    assert body.feed(b"2\r\nhi\r\n0\r\n\r\nmore") == b"hi"
    assert body.has_surplus


@pytest.mark.parametrize(
    "data",
    [b"zz\r\nhello", b"5\r\nhelloXX\r\n", b"-5\r\nhello", b"\r\nhello", b"1" * 20_000],
    ids=["no number", "no line after a piece", "negative", "nothing", "a size without end"],
)
def test_a_damaged_chunk_is_an_error(data: bytes):
    body = create_body_reader(answered(transfer_encoding="chunked"))
    with pytest.raises(NetworkError):
        body.feed(data)


@pytest.mark.parametrize(
    ("headers", "data"),
    [({"content_length": "5"}, b"hell"), ({"transfer_encoding": "chunked"}, b"5\r\nhello\r\n")],
    ids=["sized", "chunked"],
)
def test_a_body_that_ends_early_is_not_whole(headers: dict[str, str], data: bytes):
    body = create_body_reader(answered(**headers))
    body.feed(data)
    with pytest.raises(NetworkError, match="broke"):
        body.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"content_length": "5, 6"},
        {"content_length": "-1"},
        {"transfer_encoding": "chunked, gzip"},
        {"content_encoding": "br"},
    ],
)
def test_a_body_that_cannot_be_understood_is_refused(headers: dict[str, str]):
    with pytest.raises(NetworkError):
        create_body_reader(answered(**headers))


def test_the_same_length_twice_is_one_length_and_some_answers_have_no_body():
    twice = head.parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nx: y\r\nContent-Length: 3\r\n\r\n")
    assert create_body_reader(twice).feed(b"abc") == b"abc"
    assert create_body_reader(answered(204, content_length="3")).ended
    assert create_body_reader(answered(304)).ended


def test_a_head_is_read_with_folded_lines_repeated_names_and_bare_line_ends():
    found = head.parse_head(b"HTTP/1.1 200 Fine\nContent-Type: text/plain;\n charset=utf-8\nX-A: 1\nx-a: 2\n\n")
    assert found.status == 200
    assert found.headers["content-type"] == "text/plain; charset=utf-8"
    assert found.headers["X-a"] == "1, 2"


@pytest.mark.parametrize(
    "data", [b"HTTP/2 200\r\n\r\n", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2x0\r\n\r\n", b"HTTP/1.1 200\r\nno colon\r\n\r\n"]
)
def test_what_is_no_http_is_a_typed_error(data: bytes):
    with pytest.raises(NetworkError):
        head.parse_head(data)


def test_a_head_without_end_is_given_up():
    with pytest.raises(NetworkError, match="too large"):
        head.find_head_end(bytearray(b"x" * 200_000))


def test_a_connection_stays_open_unless_one_side_closes_it():
    assert answered().keeps_alive
    assert not answered(connection="Close").keeps_alive
    assert not answered(version="HTTP/1.0").keeps_alive
    assert answered(version="HTTP/1.0", connection="keep-alive").keeps_alive


@pytest.mark.parametrize("value", ["a\r\nx-injected: 1", "a\nb", "a\0b"])
def test_a_header_cannot_smuggle_in_another(value: str):
    with pytest.raises(ConfigurationError) as refused:
        head.encode_head("POST", "/", {"x-key": value})
    assert value not in str(refused.value)


def test_an_address_is_split_into_its_parts():
    place = HttpAddress.parse("https://user:p%40ss@models.example:8443/v1/a b?key=x y#part")
    assert (place.host, place.port, place.is_secure) == ("models.example", 8443, True)
    assert place.target == "/v1/a%20b?key=x%20y"
    assert place.authority == "models.example:8443"
    assert place.credentials == "Basic dXNlcjpwQHNz"
    assert HttpAddress.parse("http://[::1]").authority_with_port == "[::1]:80"
    assert HttpAddress.parse("http://bücher.example/").host == "xn--bcher-kva.example"
    assert HttpAddress.parse("HTTP://EXAMPLE.com").authority == "example.com"


@pytest.mark.parametrize(
    "url", ["ftp://x/", "nowhere", "http://", "http://x:99999/", "http://x:port/", "http:///path", "http://a..b"]
)
def test_what_cannot_be_called_is_a_mistake_of_configuration(url: str):
    with pytest.raises(ConfigurationError, match="not a valid HTTP URL"):
        HttpAddress.parse(f"{url}?key=secret")
    with pytest.raises(ConfigurationError) as refused:
        HttpAddress.parse(f"{url}?key=secret")
    assert "secret" not in str(refused.value)
