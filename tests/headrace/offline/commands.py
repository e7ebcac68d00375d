"""Commands, as a shell calls them."""

from click.testing import CliRunner

from headrace.cli import main


def run(*arguments, code=0):
    """What a command prints; its exit code must be `code`."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output
