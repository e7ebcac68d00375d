"""The `headrace` command. Each sub-command lives in its own module and is imported only when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from headrace import __version__

COMMANDS = {
    "demo": "the whole fleet on this machine: control plane, Envoys, fake engines, load",
    "serve": "the control plane",
    "check": "validate a policy",
    "plan": "plan offline from a policy and a state file",
    "explain": "why each share is what it is",
    "fit": "a profile from measurements",
    "simulate": "policies against each other on the same simulated fleet",
    "status": "a running control plane at a glance",
    "policy": "see and accept an edit of the policy that is held",
    "penalty": "an operator's hand on replicas and engines",
    "wave": "accept that most of the fleet leaves at once",
    "envoy": "render the bootstrap of a front-end's Envoy, or run Envoy with it",
    "agent": "report load for a real engine",
    "fake-engine": "an OpenAI-compatible engine with a real load curve",
    "drill": "hurt a real fleet on purpose and see what its users see",
    "load": "an open-loop chat load against front-ends",
}


class _LazyGroup(click.Group):
    """A group that imports `headrace.commands.<name>` on use, so that light commands start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"headrace.commands.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup)
@click.version_option(__version__, prog_name="headrace")
def main() -> None:
    """Headrace: a global load balancer for LLM inference."""
