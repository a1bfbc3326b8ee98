"""A network that is a list of hosts: those are reached, and nothing else."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.errors import ConfigurationError
from outrider.http.client import is_other_machine, is_public
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.bubblewrap import PROXY_SOCKET
from outrider.processes.sandbox.detect import LandlockSandbox, find_sandbox
from outrider.processes.sandbox.proxy import HostRules, ProxyRefusal, choose_address, open_proxy, parse_proxy_request
from outrider.processes.sandbox.sandbox import ProxyNetwork, SandboxPolicy

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
TUNNEL = """
import socket, sys
line = socket.create_connection(("127.0.0.1", 8118))
line.sendall(f"CONNECT 127.0.0.1:{sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
print(line.recv(100).split(b"\\r\\n")[0].decode())
line.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
print(line.makefile("rb").read()[-5:].decode())
"""


class Site:
    def __init__(self) -> None:
        self.port, self.heads = 0, list[str]()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(ANSWER)
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with await asyncio.start_server(site.answer, "127.0.0.1", 0) as server:
        site.port = server.sockets[0].getsockname()[1]
        yield site


async def run_inside(tmp_path: Path, network: ProxyNetwork, script: str, *arguments: str) -> tuple[int | None, str]:
    sandbox = find_sandbox(tmp_path)
    if sandbox.name != "bubblewrap":
        pytest.skip(f"bubblewrap does not work here: {sandbox.limitations}")
    launch = LaunchRequest((sys.executable, "-c", script, *arguments), {"PATH": os.defpath}, tmp_path)
    wrapped = sandbox.wrap(launch, SandboxPolicy(workspace=tmp_path, writable=True, network=network))
    process = await asyncio.create_subprocess_exec(
        *wrapped.argv,
        env=dict(wrapped.environment),
        cwd=wrapped.workdir,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_host_that_is_named_is_reached(site: Site, tmp_path: Path):
    async with open_proxy([f"127.0.0.1:{site.port}"], is_other_machine) as network:
        code, output = await run_inside(tmp_path, network, FETCH, f"http://127.0.0.1:{site.port}/path?q=1")
    assert (code, output) == (0, "hello\n")
    assert site.heads[0].startswith(f"GET /path?q=1 HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n")


async def test_a_host_that_is_named_is_reached_through_a_tunnel(site: Site, tmp_path: Path):
    async with open_proxy([f"127.0.0.1:{site.port}"], is_other_machine) as network:
        assert await run_inside(tmp_path, network, TUNNEL, str(site.port)) == (
            0,
            "HTTP/1.1 200 Connection established\nhello\n",
        )


async def test_a_host_that_is_not_named_is_refused_with_a_reason(site: Site, tmp_path: Path):
    async with open_proxy(["example.org"], is_other_machine) as network:
        code, output = await run_inside(tmp_path, network, FETCH, f"http://127.0.0.1:{site.port}/")
    assert code == 1
    assert "403" in output
    assert site.heads == []


async def test_there_is_no_way_around_the_doorman(site: Site, tmp_path: Path):
    script = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 3)"
    async with open_proxy([f"127.0.0.1:{site.port}"], is_other_machine) as network:
        code, output = await run_inside(tmp_path, network, script, str(site.port))
    assert code == 1
    assert "ConnectionRefusedError" in output


async def test_nonsense_at_the_door_does_not_trouble_the_doorman(site: Site, tmp_path: Path):
    script = """
import os, socket, sys
door = sys.argv[1]
unbound = socket.socket()
for descriptor in (os.open("/dev/null", os.O_RDONLY), unbound.fileno()):
    line = socket.socket(socket.AF_UNIX); line.connect(door); socket.send_fds(line, [b"x"], [descriptor])
socket.socket(socket.AF_UNIX).connect(door)
for words in (b"\\r\\n\\r\\n", b"GET / HTTP/1.1\\r\\n\\r\\n", b"x" * 100_000, b"CONNECT a:b c\\r\\n\\r\\n", b""):
    line = socket.create_connection(("127.0.0.1", 8118)); line.sendall(words); line.shutdown(1); line.recv(100)
"""
    async with open_proxy([f"127.0.0.1:{site.port}"], is_other_machine) as network:
        assert await run_inside(tmp_path, network, script, PROXY_SOCKET) == (0, "")
        assert (await run_inside(tmp_path, network, FETCH, f"http://127.0.0.1:{site.port}/"))[0] == 0


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("good.org", 443, True),
        ("GOOD.org.", 80, True),
        ("good.org", 22, False),
        ("evil-good.org", 443, False),
        ("good.org.evil.com", 443, False),
        ("a.example.com", 443, True),
        ("a.b.example.com", 443, True),
        ("example.com", 443, False),
        ("evilexample.com", 443, False),
        ("git.host", 9418, True),
        ("git.host", 443, False),
        ("::1", 8080, True),
        ("", 443, False),
    ],
)
def test_rules_name_hosts_and_ports(host: str, port: int, allowed: bool):
    assert HostRules(["good.org", "*.example.com", "git.host:9418", "[::1]:8080"]).allows(host, port) is allowed


def test_the_judged_host_replaces_the_one_that_the_request_names():
    wish = parse_proxy_request(
        b"GET http://good.org/x HTTP/1.1\r\nHost: evil.org\r\nProxy-Authorization: s\r\nA: b\r\n\r\n"
    )
    assert wish.head == b"GET /x HTTP/1.1\r\nHost: good.org\r\nConnection: close\r\nA: b\r\n\r\n"


LOCAL = ("127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "fe80::1%eth0", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
         "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::1", "224.0.0.1")  # fmt: skip
PRIVATE = ("10.0.0.7", "fd00::7", "::ffff:10.0.0.7", "64:ff9b::a00:7", "2002:a00:7::1", "192.168.1.1", "100.64.0.1")


@pytest.mark.parametrize("address", LOCAL)
def test_a_name_must_not_lead_back_to_this_machine(address: str):
    for is_allowed in (is_other_machine, is_public):
        with pytest.raises(ProxyRefusal, match="resolves to an address"):
            choose_address("rebound.example.com", [address], is_allowed)
    assert choose_address("intranet.example.com", [address, "10.0.0.7"], is_other_machine) == "10.0.0.7"
    assert choose_address("127.0.0.1", ["127.0.0.1"], is_public) == "127.0.0.1"


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_from_the_output_of_a_command_must_not_resolve_to_a_private_network(address: str):
    with pytest.raises(ProxyRefusal, match="resolves to an address"):
        choose_address("rebound.example.com", [address], is_public)
    assert choose_address("good.example.com", [address, "93.184.216.34"], is_public) == "93.184.216.34"


def test_a_line_of_a_request_must_not_hide_another_one():
    with pytest.raises(ProxyRefusal, match="control character"):
        parse_proxy_request(b"GET http://good.org/ HTTP/1.1\nHost:evil.org\r\nHost: good.org\r\n\r\n")


def test_landlock_alone_cannot_distinguish_hosts(tmp_path: Path):
    policy = SandboxPolicy(workspace=tmp_path, network=ProxyNetwork(tmp_path / "door"))
    with pytest.raises(ConfigurationError, match="needs bubblewrap"):
        LandlockSandbox(tmp_path).wrap(LaunchRequest(("true",), {}, tmp_path), policy)
