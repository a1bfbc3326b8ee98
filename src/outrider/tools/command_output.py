"""Formats command output for the model: plain text, exit status and the path of the full output."""

from outrider.processes.output import OutputSlice, OutputText, plain_text
from outrider.processes.process import ExitStatus

# Head and tail together stay below the runner's output cap, so that the runner does not cut them again.
MAX_END_CHARACTERS, MAX_END_LINES = 12_000, 900


def format_output(output: OutputText) -> str:
    """Formats the output. Output that is still in memory is truncated by the runner; longer output shows head and tail,
    and the file path."""
    text = plain_text(output.head)
    if output.left_out:
        head = "\n".join(text[:MAX_END_CHARACTERS].split("\n")[:MAX_END_LINES])
        tail = "\n".join(plain_text(output.tail)[-MAX_END_CHARACTERS:].split("\n")[-MAX_END_LINES:])
        text = f"{head}\n\n[… the middle of {output.size:,} bytes left out: {_output_location(output)} …]\n\n{tail}"
    if output.replaced:
        text = append_note(text, f"{output.replaced:,} bytes were not UTF-8 and are shown as �")
    return text


def format_slice(piece: OutputSlice) -> str:
    text = plain_text(piece.text)
    return f"[… {piece.skipped:,} bytes left out …]\n{text}" if piece.skipped else text


def format_ending(ending: ExitStatus | None) -> str:
    return "still running" if ending is None else ending.description


def append_note(text: str, note: str) -> str:
    """Appends the note in brackets on a separate line."""
    if not note:
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}[{note}]"


def _output_location(output: OutputText) -> str:
    if output.path is None:
        return "the output could not be stored"
    if output.path_size < output.size:
        return f"the first {output.path_size:,} are in {output.path}; read or search it there"
    return f"the whole output is in {output.path}; read or search it there"
