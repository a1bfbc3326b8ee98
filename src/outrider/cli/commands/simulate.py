"""`outrider simulate`: a local server that behaves like the model APIs, with their rules, errors and faults."""

import asyncio
import ssl
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from outrider.cli import exit_codes
from outrider.cli.output import Console
from outrider.cli.parser import format_examples, parse_port
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from outrider.testing.simulator import AnswerFunction, Chaos, Script, Simulator

_DESCRIPTION = """\
Serve Anthropic Messages, OpenAI Chat Completions, OpenAI Responses and Gemini on this machine, streaming or not, to
test any agent without a key and without cost. Any API key is accepted. A request that a vendor would reject gets that
vendor's error: wrong roles, calls without results, unknown fields, unsupported schemas and settings, unknown models.

Answers come from SCRIPT:
  (none)       repeats what the user wrote; with --call, calls an offered tool first
  FILE.toml    answers in order (also FILE.json), see below
  FILE.jsonl   a cassette: the responses of a recorded session, in order
  FILE.py:NAME a function that takes a request and returns an answer (see outrider.testing.Simulator)

  [[answers]]                     # FILE.toml
  text = "I look."
  calls = [{tool = "read_file", arguments = {path = "a.txt"}}]

  [[answers]]
  error = {status = 529, message = "Overloaded", headers = {retry-after = "2"}}

  [[answers]]
  when = "weather"                # whenever the last text or result contains this word
  text = "It rains."
  end = "max_tokens"              # or refusal, cut
"""
_CHAOS = """\
a share of requests that fail in some way (0.3), or shares by kind (cut=0.2,rate_limit=0.1). Kinds: rate_limit,
overloaded, server_error, cut, stall, trickle, wrong_usage, malformed_json, truncated_json, duplicate_ids, many_calls.
Settings: retry_after, stall_seconds, calls
"""


def declare_simulate(parser: ArgumentParser) -> None:
    """Declares the arguments of `outrider simulate`."""
    parser.description = _DESCRIPTION
    parser.epilog = format_examples(
        "outrider simulate --call any                       # then point an agent at the printed addresses",
        "outrider simulate script.toml --port 8300 --log requests.jsonl",
        "outrider simulate script.toml --chaos 0.3 --seed 7",
        "outrider simulate recorded.jsonl --chaos cut=0.5 --latency 0.8 --tokens-per-second 60",
    )
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="where the answers come from (see above)")
    parser.add_argument("--port", metavar="N", type=parse_port, default=0, help="the port (default: a free one)")
    parser.add_argument(
        "--call", metavar="TOOL", help="without a script: call this tool once before the answer; `any`: the first one"
    )
    parser.add_argument("--chaos", metavar="SHARES", type=parse_chaos, default={}, help=_CHAOS)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="the same seed repeats the same faults (0)")
    parser.add_argument(
        "--latency", metavar="SECONDS", type=float, default=0.0, help="median time to the first event (varies by seed)"
    )
    parser.add_argument("--tokens-per-second", metavar="N", type=float, default=0.0, help="rate of streamed texts")
    parser.add_argument("--context-tokens", metavar="N", type=int, help="reject longer requests, as for a full context")
    parser.add_argument("--any-model", action="store_true", help="accept models that the vendor does not have")
    parser.add_argument("--log", metavar="FILE", type=Path, help="append a JSON line for every request to this file")
    parser.add_argument("--certificate", metavar="FILE", help="serve HTTPS with this certificate and key (PEM)")
    parser.add_argument(
        "--slow-tls", metavar="SECONDS", type=float, default=0.0, help="with --certificate: delay every handshake"
    )
    parser.set_defaults(execute="outrider.cli.commands.simulate:serve_simulator")


def parse_chaos(text: str) -> dict[str, float]:
    """Parses `0.3` or `cut=0.2,stall=0.1`. The empty name is the share of all kinds."""
    shares: dict[str, float] = {}
    for item in text.split(","):
        name, _, value = item.rpartition("=")
        try:
            shares[name.strip().replace("-", "_")] = share = float(value)
        except ValueError:
            raise ArgumentTypeError(f"{item!r} is not a share; write 0.3 or cut=0.2,stall=0.1") from None
        if share < 0 or (share > 1 and not name):
            raise ArgumentTypeError(f"{item!r} is not a share of all requests; pass a number from 0 to 1")
    return shares


def serve_simulator(arguments: Namespace) -> int:
    """Serves until the user interrupts."""
    return asyncio.run(_serve(_create_simulator(arguments), Console()))


async def _serve(simulator: "Simulator", console: Console) -> int:
    from outrider.testing.simulator_answers import SIMULATED_APIS

    try:
        await simulator.__aenter__()
    except OSError as error:
        raise ConfigurationError(f"the simulator cannot listen: {error.strerror or error}") from error
    try:
        variables = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "google": "GOOGLE_GEMINI_BASE_URL"}
        for api in SIMULATED_APIS.values():
            console.print(f"{api.kind:<17} {simulator.url(api.kind):<28} e.g. model {api.model}")
        for kind, name in variables.items():
            console.print(f"export {name}={simulator.url(SIMULATED_APIS[kind].kind)}")
        console.out.flush()
        console.print_stderr("Ctrl+C ends the simulator")
        await asyncio.Event().wait()
    finally:
        await simulator.__aexit__()
    return exit_codes.SUCCESS


def _create_simulator(arguments: Namespace) -> "Simulator":
    from outrider.testing.simulator import Simulator

    tls = None
    if arguments.certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(arguments.certificate)
        except OSError as error:
            raise ConfigurationError(f"{arguments.certificate} has no certificate and key: {error}") from error
    if arguments.log is not None:
        try:
            arguments.log.open("ab").close()
        except OSError as error:
            raise ConfigurationError(f"the log {arguments.log} cannot be written: {error.strerror}") from error
    return Simulator(
        _load_script(arguments.script, arguments.call),
        chaos=_build_chaos(arguments.chaos, arguments.seed),
        latency=arguments.latency,
        tokens_per_second=arguments.tokens_per_second,
        context_tokens=arguments.context_tokens,
        any_model=arguments.any_model,
        log=arguments.log,
        port=arguments.port,
        tls=tls,
        tls_delay=arguments.slow_tls,
    )


def _load_script(script: str | None, tool: str | None) -> "Script":
    from outrider.testing.simulator import echo_answer

    if script is None:
        return echo_answer(tool)
    path, _, name = script.partition(".py:")
    if not name:
        if script.endswith(".py"):
            raise ConfigurationError(f"{script} needs the name of its function: {script}:NAME")
        return Path(script)
    from runpy import run_path

    try:
        function = run_path(f"{path}.py").get(name)
    except FileNotFoundError:
        raise ConfigurationError(f"there is no script {path}.py") from None
    except Exception as error:  # a script may raise anything
        raise ConfigurationError(f"{path}.py cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigurationError(f"{path}.py has no function {name}")
    return cast("AnswerFunction", function)


def _build_chaos(shares: dict[str, float], seed: int) -> "Chaos":
    from msgspec import MsgspecError, convert

    from outrider.config.file import suggest_name
    from outrider.testing.simulator import FAULTS, Chaos

    settings = dict(shares)
    share = settings.pop("", None)
    if share is not None:
        settings = dict.fromkeys(FAULTS, share / len(FAULTS)) | settings
    for name in settings:
        if name not in Chaos.__struct_fields__:
            hint = suggest_name(name, Chaos.__struct_fields__)
            raise ConfigurationError(f"there is no fault {name}{hint}; `outrider simulate --help` lists them")
    try:
        return convert(settings | {"seed": seed}, Chaos, strict=False)
    except MsgspecError as error:
        raise ConfigurationError(f"--chaos: {error}") from error
