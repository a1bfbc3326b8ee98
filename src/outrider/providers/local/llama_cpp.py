"""llama.cpp inside this process, reached by its own calls and by a socket that only this user can open."""

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
from outrider.providers.local.runtime import RuntimeLimits, Told, signals_kept

_SLOT = "/slots/0?action={}"


class EmbeddedRuntime:
    """Loading takes seconds and holds the interpreter meanwhile. Raises ServerError when the weights do not load."""

    def __init__(self, weights: Path, imprints: Path, limits: RuntimeLimits) -> None:
        # Idle threads would otherwise spin, and a failed assertion would call a debugger.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        library: Any = import_module("xllamacpp")
        self.version = str(library.__version__)
        self._key = secrets.token_hex(32)
        self._folder = Path(tempfile.mkdtemp(prefix="outrider-"))
        self._server: Any = None
        parameters = _parameters(library.CommonParams(), weights, imprints, limits)
        parameters.hostnames = [str(self._folder / "runtime.sock")]
        parameters.api_keys = [self._key]
        try:
            with signals_kept():
                self._server = library.Server(parameters)
        except RuntimeError as error:
            self.close()
            raise ServerError(
                f"{weights.name} cannot be loaded: it may be damaged, cut short, or of a kind that this runtime does "
                f"not know, or there is too little memory for it ({error})"
            ) from error

    def chat(self, body: str, told: Told) -> None:
        self._server.handle_chat_completions(body, told)

    def read(self, prompt: str, told: Told) -> None:
        body = {"prompt": prompt, "max_tokens": 0, "stream": True, "return_progress": True}
        self._server.handle_completions(msgspec.json.encode(body).decode(), told)

    def prefix(self, messages: list[dict[str, str]]) -> str:
        return str(self._ask("POST", "/apply-template", {"messages": messages})["prompt"])

    def save(self, name: str) -> None:
        self._ask("POST", _SLOT.format("save"), {"filename": name})

    def restore(self, name: str) -> bool:
        try:
            self._ask("POST", _SLOT.format("restore"), {"filename": name})
        except ServerError:
            return False
        return True

    def close(self) -> None:
        # A runtime that is ended before its loop has begun waits for ever; once it answers, the loop runs.
        if self._server is not None:
            with contextlib.suppress(ServerError):
                self._ask("GET", "/slots")
        self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = _SocketConnection(self._folder / "runtime.sock")
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, msgspec.json.encode(body) if body else None, headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the runtime does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ServerError(said.decode(errors="replace"), status=answer.status)
        return msgspec.json.decode(said)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("runtime")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _parameters(parameters: Any, weights: Path, imprints: Path, limits: RuntimeLimits) -> Any:
    parameters.model.path = str(weights)
    parameters.n_ctx = limits.context
    parameters.n_batch = parameters.n_ubatch = limits.batch
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = limits.threads
    parameters.n_parallel = 1
    parameters.cache_ram_mib = limits.cache_mib
    parameters.no_extra_bufts = True  # repacked weights are quicker by little and larger by half
    parameters.slot_save_path = f"{imprints}{os.sep}"
    parameters.endpoint_slots = True
    parameters.n_threads_http = 1
    parameters.ui = False
    parameters.fit_params = False  # it would load twice to find out what we say anyway
    parameters.warmup = False
    parameters.verbosity = -1
    return parameters
