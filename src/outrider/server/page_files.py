"""The web page: a fixed set of files, read once; no path of a request ever meets the file system."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_routes() -> list[Route]:
    files = sorted(path for path in _FOLDER.rglob("*") if path.suffix in _TYPES)
    routes = [_serving(f"/page/{path.relative_to(_FOLDER).as_posix()}", path) for path in files]
    return [_serving("/", _FOLDER / "index.html"), *routes]


def _serving(address: str, path: Path) -> Route:
    content, media_type = path.read_bytes(), _TYPES[path.suffix]

    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return Route(address, answer, methods=["GET"])
