"""Messages about unknown arguments do not repeat the value of `--token`."""

import pytest

from outrider.cli.parser import find_command, parse_arguments


@pytest.mark.parametrize(
    "words", [["list", "--attach", "http://x", "--token", "s3cret"], ["list", "--token=s3cret"], ["--token", "s3cret"]]
)
def test_the_value_of_a_token_is_left_out(words: list[str], capsys: pytest.CaptureFixture[str]):
    command = find_command("models")
    assert command is not None
    with pytest.raises(SystemExit):
        parse_arguments(command, words)
    shown = capsys.readouterr().err
    assert "s3cret" not in shown
    assert "--token" in shown
