"""What a model is told of a command: its output in plain text, how it ended, and where to find the rest."""

from outrider.processes.output import OutputSlice, OutputText, plain_text
from outrider.processes.process import Ending

# Two ends of a long output are a little less than the runner shows, so that it does not cut them again.
END_CHARACTERS, END_LINES = 12_000, 900


def told_output(output: OutputText) -> str:
    """Long output that memory still holds is left to the runner; of longer ones the ends, and where the whole is."""
    text = plain_text(output.head)
    if output.left_out:
        head = "\n".join(text[:END_CHARACTERS].split("\n")[:END_LINES])
        tail = "\n".join(plain_text(output.tail)[-END_CHARACTERS:].split("\n")[-END_LINES:])
        text = f"{head}\n\n[… the middle of {output.size:,} bytes left out: {_whereabouts(output)} …]\n\n{tail}"
    if output.replaced:
        text = noted(text, f"{output.replaced:,} bytes were not UTF-8 and are shown as �")
    return text


def told_slice(piece: OutputSlice) -> str:
    text = plain_text(piece.text)
    return f"[… {piece.skipped:,} bytes left out …]\n{text}" if piece.skipped else text


def told_ending(ending: Ending | None) -> str:
    return "still running" if ending is None else ending.words


def noted(text: str, note: str) -> str:
    """The note stands on a line of its own below the text."""
    if not note:
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}[{note}]"


def _whereabouts(output: OutputText) -> str:
    if output.path is None:
        return "they could not be kept"
    if output.path_size < output.size:
        return f"the first {output.path_size:,} are in {output.path}; read or search it there"
    return f"the whole output is in {output.path}; read or search it there"
