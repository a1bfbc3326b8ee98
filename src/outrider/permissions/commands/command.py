"""What the walk finds: simple commands, each with a proof that it only reads or the reason why there is none."""

from msgspec import Struct

from outrider.permissions.shell.values import Arg

# A rule for the inner command reaches through these: they change nothing but time, priority or buffering.
TRANSPARENT = frozenset({"timeout", "nice", "ionice", "stdbuf", "nohup", "time", "command", "env"})


class Command(Struct, frozen=True):
    """One simple command, after wrappers are taken off."""

    argv: tuple[Arg, ...]
    cwds: tuple[str, ...]
    shown: str
    wrappers: tuple[str, ...] = ()
    doubt: str | None = None  # why it is not proven to be harmless; None: it is
    barriers: tuple[str, ...] = ()  # redirects and variables that no rule reaches across


class Script(Struct, frozen=True):
    """A whole command line: what it runs, and what about it is not understood."""

    commands: tuple[Command, ...]
    problems: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why it is not proven to be harmless; empty: it is."""
        own = [doubt for command in self.commands for doubt in (command.doubt, *command.barriers) if doubt]
        return tuple(dict.fromkeys([*self.problems, *own]))
