"""`outrider completion`: prints the script that teaches a shell the commands and flags."""

from argparse import ArgumentParser

from outrider.cli.parser import examples

SHELLS = ("bash", "zsh", "fish")


def completion(parser: ArgumentParser) -> None:
    parser.description = "Print a script that lets a shell complete commands and flags."
    parser.epilog = examples(
        'eval "$(outrider completion bash)"      a line for ~/.bashrc',
        'eval "$(outrider completion zsh)"       a line for ~/.zshrc',
        "outrider completion fish > ~/.config/fish/completions/outrider.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    parser.set_defaults(execute="outrider.cli.completion.scripts:execute")
