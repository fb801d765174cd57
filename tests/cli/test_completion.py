"""Shell completion: click's own protocol, asked the way a shell asks."""

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from polykv.cli import cli, main


def completed(line):
    """(type, value) of what completes the line's last word."""
    *before, last = line.split(" ")
    words = ShellComplete(cli, {}, "polykv", "_POLYKV_COMPLETE").get_completions(before[1:], last)
    return [(item.type, item.value) for item in words]


def test_commands_complete_without_being_loaded():
    assert completed("polykv repl") == [("plain", "replay")]
    code = (
        "import sys; from click.shell_completion import ShellComplete; from polykv.cli import cli; "
        "ShellComplete(cli, {}, 'polykv', 'X').get_completions([], 're'); "
        "sys.exit(any(name.startswith(('polykv.stages', 'dask', 'numpy')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("polykv replay s --policy two", {("plain", "two_tier")}),
        ("polykv replay s --policy int8,ex", {("plain", "int8,exact")}),
        ("polykv replay s --policy ./mi", {("file", "./mi")}),
        ("polykv replay data/sm", {("file", "data/sm")}),
        ("polykv calibrate --store da", {("file", "da")}),
        ("polykv receipt ver", {("plain", "verify")}),
        ("polykv receipt verify re", {("file", "re")}),
        ("polykv replay --fail-on in", {("plain", "inconclusive")}),
        ("polykv runs --pr", {("plain", "--prune")}),
    ],
)
def test_values_complete(line, words):
    assert words <= set(completed(line))


def leaf_commands():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        inner = command.commands if isinstance(command, click.Group) else {}
        yield from ([name, other] for other in inner)
        if not inner:
            yield [name]


@pytest.mark.parametrize("words", list(leaf_commands()), ids=" ".join)
def test_a_mistyped_option_of_any_command_is_told_with_the_right_one(capsys, words):
    command = cli
    for word in words:
        command = command.get_command(click.Context(cli), word)
    options = [name for param in command.params for name in param.opts if len(name) > 5 and name.startswith("--")]
    for option in options:
        assert main([*words, f"{option[:-1]}_{option[-1]}"]) == 2
        assert option in capsys.readouterr().err


def test_the_shell_script_is_given_out():
    code = "from polykv.cli import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "_POLYKV_COMPLETE": "zsh_source"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "#compdef polykv" in done.stdout
