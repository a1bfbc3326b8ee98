"""The llama.cpp runtime inside this process, used by direct calls and through a private Unix socket."""

import contextlib
import http.client
import os
import secrets
import shutil
import socket
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from outrider.errors import ServerError
from outrider.providers.local.runtime import ChunkCallback, RuntimeLimits, preserve_signal_handlers

_SLOT_PATH = "/slots/0?action={}"


class EmbeddedRuntime:
    """A model loaded by llama.cpp. Loading takes seconds and holds the GIL. Raises ServerError if it fails."""

    def __init__(self, weights: Path, state_folder: Path, limits: RuntimeLimits) -> None:
        # Without these, idle OpenMP threads spin, and a failed assertion starts a debugger.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        library: Any = import_module("xllamacpp")
        self.version = str(library.__version__)
        self._key = secrets.token_hex(32)
        self._folder = Path(tempfile.mkdtemp(prefix="outrider-"))
        self._server: Any = None
        parameters = _configure(library.CommonParams(), weights, state_folder, limits)
        parameters.hostnames = [str(self._folder / "runtime.sock")]
        parameters.api_keys = [self._key]
        try:
            with preserve_signal_handlers():
                self._server = library.Server(parameters)
        except RuntimeError as error:
            self.close()
            raise ServerError(
                f"{weights.name} cannot be loaded: the file may be damaged, truncated or of an unsupported type, or "
                f"there is not enough memory ({error})"
            ) from error

    def chat(self, body: str, on_chunk: ChunkCallback) -> None:
        self._server.handle_chat_completions(body, on_chunk)

    def load_prompt(self, prompt: str, on_chunk: ChunkCallback) -> None:
        body = {"prompt": prompt, "max_tokens": 0, "stream": True, "return_progress": True}
        self._server.handle_completions(msgspec.json.encode(body).decode(), on_chunk)

    def render_template(self, messages: list[dict[str, str]]) -> str:
        return str(self._request_json("POST", "/apply-template", {"messages": messages})["prompt"])

    def save_state(self, name: str) -> None:
        self._request_json("POST", _SLOT_PATH.format("save"), {"filename": name})

    def restore_state(self, name: str) -> bool:
        try:
            self._request_json("POST", _SLOT_PATH.format("restore"), {"filename": name})
        except ServerError:
            return False
        return True

    def close(self) -> None:
        # Destroying the server before its loop runs blocks forever; a response proves that the loop is running.
        if self._server is not None:
            with contextlib.suppress(ServerError):
                self._request_json("GET", "/slots")
        self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _request_json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = _SocketConnection(self._folder / "runtime.sock")
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, msgspec.json.encode(body) if body else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the local runtime does not respond: {error}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ServerError(content.decode(errors="replace"), status=answer.status)
        return msgspec.json.decode(content)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("runtime")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _configure(parameters: Any, weights: Path, state_folder: Path, limits: RuntimeLimits) -> Any:
    parameters.model.path = str(weights)
    parameters.n_ctx = limits.context
    parameters.n_batch = parameters.n_ubatch = limits.batch
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = limits.threads
    parameters.n_parallel = 1
    parameters.cache_ram_mib = limits.cache_mib
    parameters.no_extra_bufts = True  # repacked weights are slightly faster and use 50% more memory
    parameters.slot_save_path = f"{state_folder}{os.sep}"
    parameters.endpoint_slots = True
    parameters.n_threads_http = 1
    parameters.ui = False
    parameters.fit_params = False  # it would load the model twice to find values that we set anyway
    parameters.warmup = False
    parameters.verbosity = -1
    return parameters
