"""Which calls a small model is offered next: left to itself it asks for the same again and again, and reads every file
there is instead of answering."""

from collections.abc import Sequence
from typing import assert_never

import msgspec

from outrider.providers.local.latest import Latest
from outrider.providers.local.names import FileNames
from outrider.providers.local.primer import Primer
from outrider.types.request import Request, ToolSpec

_IN_A_ROW = 2  # calls about the same thing


class Offer(msgspec.Struct, frozen=True):
    """A tool, and the names from which its parameter for an existing file is chosen; () where it may be anything."""

    tool: ToolSpec
    paths: Sequence[str] = ()


def offers(request: Request, primer: Primer, names: FileNames) -> list[Offer]:
    """A caller who insists on a call gets any; a model that is free to choose, those that lead on."""
    choice, paths = request.settings.tool_choice, names.existing(request)
    match choice.mode:
        case "none":
            return []
        case "required":
            return [Offer(tool, paths) for tool in request.tools]
        case "tool":
            return [Offer(tool, paths) for tool in request.tools if tool.name == choice.tool]
        case "auto":
            latest = Latest(request.prompt)
            likely = names.meant(request, latest.known) if latest.calls else ()
            found = (_leading_on(tool, primer, latest, paths, likely) for tool in request.tools)
            return [offer for offer in found if offer is not None]
        case _:
            assert_never(choice.mode)


def _leading_on(
    tool: ToolSpec, primer: Primer, latest: Latest, paths: Sequence[str], likely: Sequence[str]
) -> Offer | None:
    known = primer.tools.get(tool.name)
    given = latest.just_given(tool.name, known.subject) if known and known.subject else []
    if known and given and paths and known.subject == known.existing:
        left = [path for path in paths if path not in given and (path in likely or path in latest.asked)]
        return Offer(tool, left) if left else None
    goes_in_circles = len(given) >= _IN_A_ROW and len(set(given[:_IN_A_ROW])) == 1
    return None if goes_in_circles else Offer(tool, paths)
