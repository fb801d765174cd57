"""What the shell completes (see `polykv --help` for switching it on): files and policy names.

Command names are completed from the table of commands alone, so that no command is loaded for it.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from polykv.policy import NAMED_POLICIES

_PATHS = (
    "store",
    "out",
    "run",
    "corpus",
    "model",
    "fixture",
    "file",
    "folder",
    "pool",
    "shell",
    "baseline",
    "against",
    "certification",
)
_POLICIES = ("policy", "policies")


class PathText(click.types.StringParamType):
    """Text that names a file, a folder or a URL."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class PolicyText(click.types.StringParamType):
    """Text that names policies, with commas: named ones and .json files."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        named = [CompletionItem(before + comma + name) for name in NAMED_POLICIES if name.startswith(last)]
        return named or [CompletionItem(incomplete, type="file")]


def with_completion(command: click.Command) -> click.Command:
    """The command with completion for every parameter that takes a path or a policy."""
    for param in command.params:
        if not isinstance(param.type, click.types.StringParamType) or isinstance(param.type, (PathText, PolicyText)):
            continue
        if param.name in _POLICIES:
            param.type = PolicyText()
        elif param.name in _PATHS:
            param.type = PathText()
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_completion(inner)
    return command
