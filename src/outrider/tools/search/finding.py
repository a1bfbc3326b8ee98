"""Where a pattern stands in the files of a folder."""

from outrider.tools.search.plain_search import plain_search
from outrider.tools.search.query import Hit, Query, Scope
from outrider.tools.search.rg_search import rg_search
from outrider.tools.search.ripgrep import find_ripgrep
from outrider.tools.threads import Threads

_threads = Threads(4)


async def find_hits(query: Query, scope: Scope) -> list[Hit]:
    program = find_ripgrep()
    if program is None:
        return await _threads.run(lambda: plain_search(query, scope))
    return await rg_search(program, query, scope)
