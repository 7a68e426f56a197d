"""The command line interface, ``headrace``.

Parses arguments, prints results and errors, and sets the exit status. The work is done by the modules that the commands
call; they are imported when a command needs them, so that ``--help`` is fast.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from headrace.config.overrides import FLAGS
from headrace.proxy.admin.command_options import reaches_admin
from headrace.quota_callbacks.commands import Group, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.config.schema import Config
    from headrace.proxy.admin.client import AdminServerClient
    from headrace.quota_callbacks.options import Fault

CONFIG_FILE = click.Path(dir_okay=False, path_type=Path)
COMMANDS = "headrace.commands"
"""The entry point group in which other packages register commands."""
IMPORTED_LATER = {
    "quotas": "headrace.proxy.quota_tools.quotas_command",
    "client-quotas": "headrace.proxy.quota_tools.client_quotas_command",
}
"""Commands of modules that are imported when they are needed; each is the attribute ``command`` of its module."""


class Commands(Group):
    """The commands of this module, and those of other modules and of entry points, which are imported when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *IMPORTED_LATER, *entry_points(group=COMMANDS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name; a command of the proxy precedes an entry point."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        command: click.Command
        if cmd_name in IMPORTED_LATER:
            command = import_module(IMPORTED_LATER[cmd_name]).command
            return command
        for found in entry_points(group=COMMANDS, name=cmd_name):
            command = found.load()
            return command
        return None


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from headrace.proxy.data_plane.native import is_installed

    data_plane = "native data plane installed" if is_installed() else "no native data plane"
    click.echo(f"headrace {version('headrace')} ({data_plane})")
    context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version, and whether the native data plane is installed.",
)
def main() -> None:
    """A quota-enforcing proxy for Apache Kafka."""


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    for flag in reversed(FLAGS):
        text = f"{flag.help} May be repeated." if flag.repeated else flag.help
        key = flag.key.replace(".", "__")
        command = click.option(flag.name, key, metavar="VALUE", help=text, multiple=flag.repeated)(command)
    return command


@main.command()
@click.option("--config", "path", type=CONFIG_FILE, help="The configuration file. Options take precedence over it.")
@_flags
def run(path: Path | None, **options: Any) -> None:
    """Run the proxy.

    Without a file, --bootstrap-servers and --listen suffice. Broker n is reached at the bootstrap port + 1 + n.
    SIGTERM drains connections and stops the proxy; SIGHUP reloads the file.

    Every key of the file can also be set by an environment variable: HEADRACE_LISTEN__ADDRESS sets listen.address.
    Options take precedence over variables, and variables over the file.
    """
    from headrace.config.loading import load
    from headrace.config.problems import ConfigError
    from headrace.proxy.errors import PluginConfigurationError, StartupError
    from headrace.proxy.hooks.loading import installed_plugins
    from headrace.proxy.logs import configure_logs
    from headrace.proxy.server.command import run_server
    from headrace.proxy.server.preflight import plugin_faults

    flags = {key.replace("__", "."): value for key, value in options.items() if value not in (None, ())}

    def load_again() -> Config:
        return load(path, flags, environment=os.environ, plugins=installed_plugins(), schema=None)

    try:
        config = load_again()
        configure_logs(config.log)
        run_server(config, load_again if path is not None else None)
    except (ConfigError, StartupError) as error:
        at_start = error.faults if isinstance(error, PluginConfigurationError) else ()

        def faults(config: Config) -> Sequence[Fault]:
            return plugin_faults(config) or at_start

        try:
            load(path, flags, environment=os.environ, plugins=installed_plugins(), plugin_faults=faults)
        except ConfigError as every:  # with what plugins reject, and its lines in the file
            fail(*str(every).splitlines())
        fail(*str(error).splitlines())


@main.command("check-config")
@click.argument("path", metavar="[FILE]", type=CONFIG_FILE, required=False)
def check_config(path: Path | None) -> None:
    """Check a configuration file and print its effect, or every error in it.

    Environment variables apply as they do for "headrace run"; without a file they are checked alone. Nothing is
    written, and no connection is opened. The only commands that are run are those that print passwords of certificates
    or secret settings of Kafka clients.
    """
    from headrace.config.check import check
    from headrace.config.loading import load
    from headrace.proxy.hooks.loading import installed_plugins
    from headrace.proxy.server.preflight import plugin_faults, problems_of, warnings_of

    read = partial(
        load, path, environment=os.environ, plugins=installed_plugins(), plugin_faults=plugin_faults, schema=None
    )
    report = check(read)
    config = report.config
    if config is None:
        click.echo(str(report), err=True)
        sys.exit(1)
    problems = problems_of(config)
    for warning in warnings_of(config):
        click.echo(f"warning: {warning}", err=True)
    if problems:
        fail(*"\n".join(problems).splitlines())
    click.echo(str(report))


@main.command("config-sample")
def config_sample() -> None:
    """Print a configuration file that explains every key.

    The keys that every proxy needs are set; all others are commented out, with their defaults or with examples.
    """
    from headrace.config.editing import sample_text

    click.echo(sample_text(), nl=False)


@main.command("config-schema")
@click.option("--config", "path", type=CONFIG_FILE, help="A file whose plugins are described.")
def config_schema(path: Path | None) -> None:
    """Print the JSON Schema of the configuration file, for use in editors.

    It has the options of all installed plugins. With --config, it has those of the plugins of that file, and their
    quota keys and entity types, too.
    """
    from headrace.config.editing import json_schema_problem, json_schema_text
    from headrace.config.loading import load
    from headrace.config.problems import ConfigError
    from headrace.config.schema import Log
    from headrace.proxy.errors import StartupError
    from headrace.proxy.logs import configure_logs
    from headrace.proxy.server.preflight import options_tables

    configure_logs(Log())  # warnings about plugins do not belong into the schema
    try:
        config = None if path is None else load(path, environment=os.environ, schema=None)
        names, tables = options_tables(config)
    except (ConfigError, StartupError) as error:
        fail(*str(error).splitlines())
    for name, table in tables.items():
        if (problem := json_schema_problem(table)) is not None:
            reason = f"they have no JSON Schema: {problem}"
            click.echo(f"warning: the options of {name} are not described: {reason}", err=True)
    click.echo(json_schema_text(names, tables), nl=False)


@main.command()
@click.argument("state", type=click.Choice(["on", "off", "show"]), default="show")
@reaches_admin
def enforcement(state: str, admin: AdminServerClient) -> None:
    """Turn the enforcement of all quotas on or off while the proxy runs, or show its state.

    Turning it off unmutes all clients at once. The state lasts until it is changed again or the proxy restarts; the
    configuration file is not changed.

    The proxy accepts a change with one of its tokens, with a client certificate that [admin.tls] accepts,
    or, without tokens, through its Unix socket.
    """
    enabled = admin.enforcement() if state == "show" else admin.enforce(enabled=state == "on")
    click.echo(f"enforcement is {'on' if enabled else 'off'}")


@main.command()
@reaches_admin
def ready(admin: AdminServerClient) -> None:
    """Print "ready" and exit with status 0 if the running proxy is ready for clients; otherwise print the reasons and
    exit with status 1.

    Use it for health checks that cannot send HTTP requests, such as those of a proxy whose admin server is a Unix
    socket.
    """
    if reasons := admin.not_ready():
        fail(f"not ready: {'; '.join(reasons)}")
    click.echo("ready")


@main.command()
@click.option("--user", metavar="NAME", help="Show only decisions about this user.")
@click.option("--client-id", metavar="ID", help="Show only decisions about this client id.")
@click.option(
    "--newest",
    type=click.IntRange(1, 1000),
    help="The maximum number of decisions to read.  [default: 1000, all that are kept; 20 with --json]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the admin server's answer as JSON.")
@click.option("--watch", "live", is_flag=True, help="Refresh the output every second until Ctrl-C.")
@reaches_admin
def why(
    user: str | None, client_id: str | None, newest: int | None, as_json: bool, live: bool, admin: AdminServerClient
) -> None:
    """Show which clients the running proxy throttles or refuses, and why.

    For each entity and quota, the output shows the last observed value and the limit, the connections that are muted
    now and for how much longer, and how often requests were throttled, held or refused. Entities with muted
    connections come first.

    With --watch, a terminal is refreshed in place; any other output receives a snapshot every second. With --watch and
    --json, each snapshot is one line.
    """
    from headrace.proxy.admin.why import format_page, watch
    from headrace.quota_callbacks.escaping import json_text

    most = newest or (20 if as_json else 1000)
    fetch = partial(admin.decisions, user=user, client_id=client_id, newest=most)
    if live:
        watch(fetch, as_json=as_json)
        return
    answer = fetch()
    if as_json:
        click.echo(json_text(answer, indent=2))
        return
    for line in format_page(answer):
        click.echo(line)


@main.command()
@click.argument("trace", metavar="TRACE", type=click.Path(allow_dash=True, path_type=Path))
@click.option(
    "--output",
    type=click.Path(allow_dash=True, path_type=Path),
    default="-",
    metavar="FILE",
    help="Write to this file instead of standard output. It is replaced only after the whole trace was replayed.",
)
def replay(trace: Path, output: Path) -> None:
    """Replay recorded traffic against quotas, without a proxy or a broker.

    TRACE contains one JSON object per line, in order of time ("-" reads standard input). The first line sets the
    windows; the others change quotas or record usage, with t in milliseconds.

    \b
    {"window": {"samples": 11, "seconds": 1}, "controller_window": {"samples": 11, "seconds": 1}}
    {"t": 0, "alter": {"entity": {"user": "alice"}, "set": {"producer_byte_rate": 1000}, "remove": []}}
    {"t": 12, "user": "alice", "client_id": "c1", "op": "produce", "amount": 11000}

    \b
    op                   amount
    produce, fetch       bytes
    request              milliseconds of thread time
    controller_mutation  partitions; needs "strict": true or false as well
    producer_id          the id
    new_producer_ids     number of new ids, if the ids themselves are not known

    Each usage line is written back with "throttle_time_ms" and "accepted" added, computed by the code that the proxy
    uses; a summary is printed to standard error. Throttling does not shift the recorded times. An invalid line ends the
    replay with exit status 1, an error that names the line number, and no output. See docs/replay.md for the details.

    \b
    Example: headrace replay trace.jsonl --output decided.jsonl
    """
    from headrace.proxy.replay.files import replay_file
    from headrace.proxy.replay.replay import TraceError

    started_s = perf_counter()
    try:
        summary = replay_file(trace, output)
    except TraceError as error:
        fail(*str(error).splitlines())
    except BrokenPipeError:  # as with `headrace replay trace.jsonl | head`; click exits without a message
        raise
    except OSError as error:
        fail(f"cannot replay {trace}: {error.strerror}" + (f": {error.filename}" if error.filename else ""))
    for line in summary.text(perf_counter() - started_s):
        click.echo(line, err=True)


if __name__ == "__main__":
    main()
