"""The command line: `polykv COMMAND`. Each command says what it does with --help.

Exit codes: 0 it ran and no requested gate failed; 1 the verdict; 2 bad input or usage;
3 damaged or incomplete data, a failed cell, or a fault of polykv itself; 130 interrupted.
"""

from __future__ import annotations

import difflib
import errno
import sys
import traceback

import click
from click.shell_completion import CompletionItem

from polykv import __version__
from polykv.errors import PolykvError

INTERRUPTED = 130
INTERRUPTED_TEXT = "polykv: interrupted; what is done is kept: run the same command again to go on"
BAD_INPUT = 2
INTERNAL_ERROR = 3
# What the file system refuses of a path that somebody gave us.
REFUSED_BY_SYSTEM = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


class Commands(click.Group):
    """A group that loads a command's module when it is asked for, and suggests the nearest name."""

    modules = {
        "calibrate": "polykv.cli.sweep:calibrate",
        "capture": "polykv.cli.capture:capture",
        "certify": "polykv.cli.certify:certify",
        "gonogo": "polykv.cli.gonogo:gonogo",
        "inspect": "polykv.cli.stores:inspect",
        "log": "polykv.cli.log:log",
        "receipt": "polykv.cli.receipt:receipt",
        "policy": "polykv.cli.policy:policy",
        "query": "polykv.cli.query:query",
        "report": "polykv.cli.report:report",
        "replay": "polykv.cli.sweep:replay",
        "runs": "polykv.cli.runs:runs",
        "show": "polykv.cli.runs:show",
        "tables": "polykv.cli.tables:tables",
        "verify": "polykv.cli.stores:verify",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        reference = self.modules.get(name)
        if reference is None:
            return None
        module, _, attribute = reference.partition(":")
        from polykv.cli.completion import with_completion

        return with_completion(getattr(__import__(module, fromlist=[attribute]), attribute))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args and args[0] not in self.modules:
            near = difflib.get_close_matches(args[0], self.modules, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint} (polykv --help lists them)", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="polykv")
def cli() -> None:
    """How far can an LLM's key-value cache be compressed, head by head, before the model changes?

    \b
    polykv capture --model smollm2 --corpus book.txt --out captures/mine
    polykv calibrate --store captures/mine --out runs/mine

    Completion in the shell, for this session or in its start-up file (zsh_source and fish_source alike):

    \b
    eval "$(_POLYKV_COMPLETE=bash_source polykv)"
    """


def main(argv: list[str] | None = None, command: click.Command = cli) -> int:
    """Run a command; returns the exit code and prints errors in one line, never a traceback."""
    try:
        code = command.main(args=argv, prog_name=None if command is not cli else "polykv", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(INTERRUPTED_TEXT, err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PolykvError as error:
        click.echo(f"polykv: {error}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output (head, less) went away: not an error of ours.
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in REFUSED_BY_SYSTEM:
            return _internal(error)
        click.echo(f"polykv: {error.filename or 'a file'}: {error.strerror}", err=True)
        return BAD_INPUT
    except Exception as error:
        return _internal(error)
    return code if isinstance(code, int) else 0


def _internal(error: Exception) -> int:
    # Not 1, which is a verdict: a fault of ours must not look like a policy that fails.
    traceback.print_exc()
    click.echo(f"polykv: internal error, {type(error).__name__}: {error}; please report the lines above", err=True)
    return INTERNAL_ERROR


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())
