"""A file is opened at the path of the decision, even if links are replaced meanwhile."""

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.permissions.paths.containment import PathRefused, open_to_read, open_to_write, write_atomically


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "ws" / "src").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "secret.txt").write_text("secret")
    (tmp_path / "ws" / "a.txt").write_text("inside")
    return tmp_path


def read(path: str, place: Path) -> bytes:
    descriptor = open_to_read(path, root=str(place / "ws"), cwd=str(place / "ws"))
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


class OldKernel:
    """The C library on a kernel without openat2."""

    def __init__(self, *_: object, **__: object) -> None:
        self.syscall = self.refuse

    @staticmethod
    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1


@pytest.fixture(params=["openat2", "walk"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's own call, and without it."""
    if request.param == "walk":
        monkeypatch.setattr(ctypes, "CDLL", OldKernel)


@pytest.mark.usefixtures("both_ways")
def test_files_inside_are_read_also_through_links_inside(place: Path):
    (place / "ws" / "link").symlink_to("src")
    (place / "ws" / "src" / "b.txt").write_text("deep")
    assert read("a.txt", place) == b"inside"
    assert read("link/b.txt", place) == b"deep"
    assert read(str(place / "ws" / "src" / "b.txt"), place) == b"deep"


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("path", ["../out/secret.txt", "src", ".", "missing", ".env"])
def test_nothing_else_is_read(path: str, place: Path):
    (place / "ws" / ".env").write_text("x")
    with pytest.raises(OSError):
        read(path, place)


def test_protected_files_open_only_after_approval(place: Path):
    (place / "ws" / ".env").write_text("x")
    with pytest.raises(PathRefused) as refused:
        read(".env", place)
    assert refused.value.containment.kind == "protected"
    os.close(open_to_read(".env", root=str(place / "ws"), cwd=str(place / "ws"), allow_protected=True))
    with pytest.raises(PathRefused):
        open_to_read("../out/secret.txt", root=str(place / "ws"), cwd=str(place / "ws"), allow_protected=True)


def test_pipes_and_second_names_are_refused(place: Path):
    workspace = str(place / "ws")
    os.mkfifo(place / "ws" / "pipe")
    os.link(place / "out" / "secret.txt", place / "ws" / "second")
    with pytest.raises(PathRefused):
        open_to_read("pipe", root=workspace, cwd=workspace)
    with pytest.raises(PathRefused, match="several hard links"):
        open_to_write("second", root=workspace, cwd=workspace)
    write_atomically("second", b"new", root=workspace, cwd=workspace)
    assert (place / "out" / "secret.txt").read_text() == "secret"
    assert (place / "ws" / "second").read_text() == "new"


def test_writing_makes_folders_and_preserves_the_mode(place: Path):
    workspace = str(place / "ws")
    write_atomically("new/deep/x.sh", b"one", root=workspace, cwd=workspace)
    (place / "ws" / "new" / "deep" / "x.sh").chmod(0o751)
    write_atomically("new/deep/x.sh", b"two", root=workspace, cwd=workspace)
    assert (place / "ws" / "new" / "deep" / "x.sh").read_bytes() == b"two"
    assert (place / "ws" / "new" / "deep" / "x.sh").stat().st_mode & 0o777 == 0o751
    assert [path.name for path in (place / "ws" / "new" / "deep").iterdir()] == ["x.sh"]


def test_a_file_opened_to_write_has_its_content_until_written(place: Path):
    workspace = str(place / "ws")
    descriptor = open_to_write("a.txt", root=workspace, cwd=workspace)
    assert os.read(descriptor, 10) == b"inside"
    os.close(descriptor)
    os.close(open_to_write("fresh/b.txt", root=workspace, cwd=workspace))
    assert (place / "ws" / "fresh" / "b.txt").read_bytes() == b""


def test_a_failed_write_leaves_no_files(place: Path):
    workspace = str(place / "ws")
    with pytest.raises(TypeError):
        write_atomically("a.txt", 7, root=workspace, cwd=workspace)  # pyright: ignore
    assert (place / "ws" / "a.txt").read_text() == "inside"
    assert sorted(path.name for path in (place / "ws").iterdir()) == ["a.txt", "src"]


def test_an_error_of_the_kernel_is_reported(place: Path):
    with pytest.raises(OSError) as raised:
        read("missing", place)
    assert raised.value.errno == errno.ENOENT


def racing(swap: Callable[[], None], attempt: Callable[[], None], rounds: int = 400) -> None:
    """One thread swaps things while the other repeats its attempts; an error is an accepted result."""
    stop = threading.Event()

    def keep_swapping() -> None:
        while not stop.is_set():
            swap()

    thread = threading.Thread(target=keep_swapping)
    thread.start()
    try:
        for _ in range(rounds):
            with contextlib.suppress(OSError):
                attempt()
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("both_ways")
def test_a_folder_that_is_swapped_for_a_link_never_lets_the_outside_be_read(place: Path):
    workspace, link, real = place / "ws", place / "ws" / "l", place / "ws" / "real"
    (workspace / "d").mkdir()
    (workspace / "d" / "secret.txt").write_text("inside")
    link.symlink_to("../out")
    seen: set[bytes] = set()

    def swap() -> None:
        Path(workspace / "d").rename(real)
        Path(link).rename(workspace / "d")
        Path(workspace / "d").rename(link)
        Path(real).rename(workspace / "d")

    racing(swap, lambda: seen.add(read("d/secret.txt", place)))
    seen.add(read("d/secret.txt", place))  # on a busy machine every attempt may have met the link
    assert seen == {b"inside"}


def test_a_file_that_is_swapped_for_a_link_is_never_written_through(place: Path):
    workspace, root = place / "ws", str(place / "ws")

    def swap() -> None:
        (workspace / "planted").symlink_to("../out/secret.txt")
        Path(workspace / "planted").replace(workspace / "a.txt")
        (workspace / "plain").write_text("inside")
        Path(workspace / "plain").replace(workspace / "a.txt")

    def attempt() -> None:
        write_atomically("a.txt", b"evil", root=root, cwd=root)
        descriptor = open_to_write("a.txt", root=root, cwd=root)
        os.write(descriptor, b"evil")
        os.close(descriptor)

    racing(swap, attempt)
    assert {path.name: path.read_text() for path in (place / "out").iterdir()} == {"secret.txt": "secret"}


def test_a_parent_that_is_planted_as_a_link_is_never_written_into(place: Path):
    workspace, root = place / "ws", str(place / "ws")

    def swap() -> None:
        with contextlib.suppress(OSError):
            (workspace / "new").symlink_to("../out")
            (workspace / "new").unlink()

    def attempt() -> None:
        write_atomically("new/deep/x", b"evil", root=root, cwd=root)
        (workspace / "new" / "deep" / "x").unlink()
        (workspace / "new" / "deep").rmdir()
        (workspace / "new").rmdir()

    racing(swap, attempt)
    assert [path.name for path in (place / "out").iterdir()] == ["secret.txt"]


@pytest.mark.parametrize("open_it", [open_to_read, open_to_write])
def test_protected_files_are_refused_unless_it_is_reported_otherwise(open_it: Callable[..., int], place: Path):
    (place / "ws" / ".env").write_text("x")
    with pytest.raises(PathRefused):
        open_it(".env", root=str(place / "ws"), cwd=str(place / "ws"))
    with pytest.raises(PathRefused):
        write_atomically(".env", b"y", root=str(place / "ws"), cwd=str(place / "ws"))
    assert (place / "ws" / ".env").read_text() == "x"
    write_atomically(".env", b"y", root=str(place / "ws"), cwd=str(place / "ws"), allow_protected=True)
    assert (place / "ws" / ".env").read_text() == "y"


@pytest.mark.usefixtures("both_ways")
def test_a_missing_file_is_reported_as_missing(place: Path):
    with pytest.raises(FileNotFoundError):
        read("missing", place)


def test_reading_waits_for_what_is_not_there_yet(place: Path):
    descriptor = open_to_read("a.txt", root=str(place / "ws"), cwd=str(place / "ws"))
    assert os.get_blocking(descriptor)
    os.close(descriptor)


@pytest.mark.usefixtures("both_ways")
def test_what_is_refused_leaves_nothing_open(place: Path):
    os.mkfifo(place / "ws" / "pipe")
    (place / "ws" / "twice").hardlink_to(place / "ws" / "a.txt")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("pipe", "src", "missing"):
        with pytest.raises(OSError):
            read(name, place)
    with pytest.raises(PathRefused):
        open_to_write("twice", root=str(place / "ws"), cwd=str(place / "ws"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_is_replaced_has_its_old_mode(place: Path):
    (place / "ws" / "a.txt").chmod(0o640)
    write_atomically("a.txt", b"new", root=str(place / "ws"), cwd=str(place / "ws"))
    assert (place / "ws" / "a.txt").stat().st_mode & 0o777 == 0o640
