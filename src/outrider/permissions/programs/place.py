"""Where a command runs: the workspace and the folders it can be in, and which files it may read there unasked."""

import os
import re
from collections.abc import Collection, Iterable
from functools import cached_property

from outrider.permissions.paths.contain import Containment, contain
from outrider.permissions.paths.links import link_out, unruly_name
from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg

_HARMLESS_DEVICES = re.compile(r"^/dev/(?:null|zero|full|u?random|stdin|fd/[0-9]+)$")


class Place:
    """One workspace during one decision; answers about paths are remembered that long."""

    def __init__(self, root: str, cwds: tuple[str, ...], known: dict[tuple[str, str, str], Containment]) -> None:
        self.root, self.cwds, self._known = root, cwds, known

    def at(self, cwds: tuple[str, ...]) -> "Place":
        return Place(self.root, cwds, self._known)

    @cached_property
    def cwd(self) -> str:
        return self.cwds[0]

    def contain(self, path: str, cwd: str, op: str = "list") -> Containment:
        key = (path, cwd, op)
        if key not in self._known:
            self._known[key] = contain(path, root=self.root, cwd=cwd, op=op)
        return self._known[key]

    def check(self, arg: Arg, *, opens: bool = True) -> None:
        """Refuses an argument that can name a file which may not be read unasked; a file that is not opened shows no
        secret."""
        if arg.paths:
            return
        if arg.choices is None:
            raise Unclear(f"which file {arg.shown or 'an argument'} names is unknown")
        for choice in arg.choices:
            self.check_text(choice, opens=opens)

    def refuse_links(self, starts: Iterable[str], names: Collection[str] = ()) -> None:
        """Refuses to open what is found below these folders where a link among it leads out of the workspace."""
        for start in starts:
            for cwd in self.cwds:
                if why := link_out(os.path.join(cwd, start), os.path.realpath(self.root), names):  # noqa: PTH118
                    raise Unclear(why)

    def refuse_unruly(self, starts: Iterable[str]) -> None:
        """Refuses to take names below these folders from a text, where one of them would be taken apart."""
        for start in starts:
            for cwd in self.cwds:
                if why := unruly_name(start, os.path.join(cwd, start)):  # noqa: PTH118
                    raise Unclear(why)

    def check_text(self, path: str, *, opens: bool = True) -> None:
        if path in {"-", ""} or _HARMLESS_DEVICES.match(path):
            return
        for cwd in self.cwds:
            # The shell has expanded every `~` that counts; one that is left is a name like any other.
            found = self.contain(path if not path.startswith("~") else f"./{path}", cwd)
            if found.kind != "inside" and (opens or found.kind != "protected"):
                raise Unclear(f"{path}: {found.reason}")
