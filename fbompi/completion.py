"""Completing commands, options, files and keys with the Tab key."""

from __future__ import annotations

import os
import re

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE = "_FBOMPI_COMPLETE"
INSTALL = {
    "bash": 'to have it in every shell, put this into ~/.bashrc:  eval "$(fbompi completion bash)"',
    "zsh": 'to have it in every shell, put this into ~/.zshrc, after compinit:  eval "$(fbompi completion zsh)"',
    "fish": "to have it in every shell:  fbompi completion fish > ~/.config/fish/completions/fbompi.fish",
}
SPACE = "    return 0\n"
NO_SPACE = "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"  # a value follows


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print a script with which a shell completes commands, options, files, and the keys of -o.

    \b
    eval "$(fbompi completion bash)"
    fbompi completion fish > ~/.config/fish/completions/fbompi.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "fbompi", VARIABLE).source().strip()
    script = script.replace(SPACE, NO_SPACE + SPACE, 1) if shell == "bash" else script
    first, _, rest = script.partition("\n")  # zsh wants its own line before all others
    lines = [first, f"# {INSTALL[shell]}", rest] if first.startswith("#compdef") else [f"# {INSTALL[shell]}", script]
    click.echo("\n".join(lines))


def keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The keys of a configuration that begin so, those of the method and problem on this command line among them."""
    from fbompi.config import SECTIONS, Run, keys_of
    from fbompi.errors import UserError
    from fbompi.registry import algorithm, problem

    sections = dict(SECTIONS)
    try:
        sections["algorithm"] = algorithm(_named("algorithm", Run.algorithm)).Parameters
        sections["problem"] = problem(_named("problem", Run.problem))
    except UserError:
        pass  # the name is wrong; running tells
    return [
        CompletionItem(f"{section}.{key.name}=", help=key.meaning)
        for section, of in sections.items()
        for key in (keys_of(of) or {}).values()
        if f"{section}.{key.name}=".startswith(incomplete)
    ]


def _named(key: str, default: str) -> str:
    """What -o run.KEY says on the line so far, which bash takes apart at equals signs. No file of a user is loaded."""
    found = re.findall(rf"run\.{key}\s*=\s*([\w-]+)(?!\S)", os.environ.get("COMP_WORDS", ""))
    return found[-1] if found else default
