"""Denied accesses are recognised in the messages of common programs."""

import pytest

from outrider.outcomes.describe import find_blocked, name_grants, needs_writable_view
from outrider.types.outcomes import BlockedAccess
from tests.fixtures.cases import for_each

WORKSPACE = "/home/me/project"
NETWORK = {
    "curl": ("curl: (6) Could not resolve host: api.example.com", "api.example.com"),
    "curl by proxy": ("curl: (5) Could not resolve proxy: proxy.example.com", "proxy.example.com"),
    "wget": (
        "--2026-01-01 10:00:00--  https://files.example.org/x.tgz\nResolving files.example.org (files.example.org)... "
        "failed: Temporary failure in name resolution.\n"
        "wget: unable to resolve host address \u2018files.example.org\u2019",
        "files.example.org",
    ),
    "git": (
        "fatal: unable to access 'https://github.com/a/b.git/': Could not resolve host: github.com",
        "github.com",
    ),
    "git over ssh": (
        "ssh: Could not resolve hostname github.com: Temporary failure in name resolution\n"
        "fatal: Could not read from remote repository.",
        "github.com",
    ),
    "pip": (
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3."
        "connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -3] Temporary "
        "failure in name resolution')': /simple/requests/\nERROR: Could not find a version that satisfies "
        "the requirement requests (from versions: none)",
        "",
    ),
    "requests": (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.example.com', port=443): Max retries "
        "exceeded with url: / (Caused by NameResolutionError(\"<urllib3.connection.HTTPSConnection object at 0x7f>: "
        "Failed to resolve 'api.example.com' ([Errno -3] Temporary failure in name resolution)\"))",
        "api.example.com",
    ),
    "python": ("urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>", ""),
    "npm": (
        "npm error code EAI_AGAIN\nnpm error syscall getaddrinfo\nnpm error errno EAI_AGAIN\nnpm error request to "
        "https://registry.example.org/left-pad failed, reason: getaddrinfo EAI_AGAIN registry.example.org",
        "registry.example.org",
    ),
    "node": ("Error: getaddrinfo ENOTFOUND api.example.com", "api.example.com"),
    "cargo": (
        "warning: spurious network error (3 tries remaining): [6] Couldn't resolve host name (Could not resolve host: "
        "index.crates.io)\nerror: failed to get `serde` as a dependency of package `x`",
        "index.crates.io",
    ),
    "go": (
        'go: github.com/pkg/errors@v0.9.1: Get "https://proxy.golang.org/github.com/pkg/errors/@v/v0.9.1.mod": dial '
        "tcp: lookup proxy.golang.org on 10.0.0.2:53: dial udp 10.0.0.2:53: connect: network is unreachable",
        "proxy.golang.org",
    ),
    "go, no server": ("dial tcp: lookup proxy.golang.org: Temporary failure in name resolution", "proxy.golang.org"),
    "ssh": (
        "ssh: Could not resolve hostname build.example.com: Name or service not known",
        "build.example.com",
    ),
    "apt": (
        "Err:1 http://deb.example.org/debian bookworm InRelease\n  Temporary failure resolving 'deb.example.org'\n"
        "E: Failed to fetch http://deb.example.org/debian/dists/bookworm/InRelease",
        "deb.example.org",
    ),
    "ping": ("ping: example.com: Temporary failure in name resolution", "example.com"),
    "uv": (
        "error: Failed to fetch: `https://index.example.org/simple/requests/`\n  Caused by: dns error: failed "
        "to lookup address information: Temporary failure in name resolution",
        "index.example.org",
    ),
}  # fmt: skip


@for_each("program", NETWORK)
def test_hosts_are_named_as_the_program_named_them(program: str):
    output, host = NETWORK[program]
    found = find_blocked(output, 1, workspace=WORKSPACE)
    assert [(access.kind, access.target) for access in found] == [("network", host)]


@pytest.mark.parametrize(
    ("output", "target"),
    [
        ("touch: cannot touch '/etc/x': Read-only file system", "/etc/x"),
        ("bash: line 1: /home/me/.bashrc: Read-only file system", "/home/me/.bashrc"),
        ("/bin/bash: line 1: /etc/x: Read-only file system", "/etc/x"),
        ("/usr/bin/touch: cannot touch '/etc/x': Read-only file system", "/etc/x"),
        ("/etc/x: Read-only file system", "/etc/x"),
        ("OSError: [Errno 30] Read-only file system: '/usr/lib/python3/x.py'", "/usr/lib/python3/x.py"),
        ("Error: EROFS: read-only file system, mkdir '/home/me/.npm/_cacache'", "/home/me/.npm/_cacache"),
    ],
)
def test_paths_outside_are_named(output: str, target: str):
    (found,) = find_blocked(output, 1, workspace=WORKSPACE)
    assert (found.kind, found.target, found.description) == ("path", target, target)


def test_sockets_are_named():
    output = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    (found,) = find_blocked(output, 1, workspace=WORKSPACE)
    assert (found.kind, found.target) == ("socket", "/var/run/docker.sock")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "E   AssertionError: assert 1 == 2",
        "error: could not find `Cargo.toml`",
        "connect to localhost:8080 failed: Connection refused",
        "make: *** [Makefile:3: test] Error 1",
        f"touch: cannot touch '{WORKSPACE}/.git/x': Read-only file system",
    ],
)
def test_other_failures_are_no_blocked_access(output: str):
    assert find_blocked(output, 1, workspace=WORKSPACE) == ()


def test_a_command_that_succeeded_was_not_blocked():
    for output, _ in NETWORK.values():
        assert find_blocked(output, 0, workspace=WORKSPACE) == ()


def test_a_few_targets_are_enough():
    output = "\n".join(f"curl: (6) Could not resolve host: h{number}.example.com" for number in range(50))
    assert len(find_blocked(output, 6, workspace=WORKSPACE)) == 8


def test_large_outputs_are_searched_at_both_ends_in_no_time():
    sign = "curl: (6) Could not resolve host: a.example.com"
    for output in (f"{sign}\n{'x ' * 5_000_000}", f"{'x.' * 5_000_000}\n{sign}"):
        assert [access.target for access in find_blocked(output, 6, workspace=WORKSPACE)] == ["a.example.com"]


def test_a_read_only_mount_is_noticed():
    assert needs_writable_view("touch: cannot touch 'x': Read-only file system", 1)
    assert not needs_writable_view("touch: cannot touch 'x': Read-only file system", 0)
    assert not needs_writable_view("permission denied", 1)


def test_a_service_that_hands_out_credentials_is_never_offered():
    output = "curl: (7) Failed to connect to 169.254.169.254 port 80: Network is unreachable"
    assert find_blocked(output, 7, workspace=WORKSPACE) == (BlockedAccess("network"),)


def test_a_grant_names_the_target_of_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    output = f"touch: {tmp_path}/link/new: Read-only file system\ntouch: {tmp_path}/x/../link: Read-only file system"
    assert name_grants(find_blocked(output, 1, workspace=WORKSPACE)) == (BlockedAccess("path", str(tmp_path / "real")),)


def test_a_path_with_invisible_characters_is_not_offered():
    assert find_blocked("touch: /etc/\u202ecod: Read-only file system", 1, workspace=WORKSPACE) == ()
