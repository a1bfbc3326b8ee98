"""Declares the arguments of the commands that serve other programs: serve, users, audit, acp and mcp."""

from argparse import ArgumentParser

from outrider.cli.parser import (
    SUBCOMMANDS_TITLE,
    add_agent_options,
    add_cwd_option,
    add_database_option,
    add_health_options,
    format_examples,
    parse_cost,
    parse_duration,
    parse_port,
    parse_positive_int,
)
from outrider.config.environment import OptionDefaults, read_option_defaults

_ACP_DESCRIPTION = """\
Run as an agent for an editor. The editor starts this command and exchanges Agent Client Protocol messages with it on
stdin and stdout. The editor chooses folders and sessions, shows progress, and asks you for approvals.
The options here apply to all sessions; messages for you go to stderr."""


def declare_acp(parser: ArgumentParser) -> None:
    parser.description = _ACP_DESCRIPTION
    parser.epilog = format_examples("outrider acp", "outrider acp --model anthropic/claude-sonnet-4-5 --mode plan")
    add_agent_options(parser)
    parser.add_argument(
        "--login", action="store_true", help="store an API key instead; editors start this in a terminal"
    )
    parser.set_defaults(execute="outrider.cli.commands.serve:serve_acp")


_SERVE_DESCRIPTION = """\
Serve the engine and a web page over HTTP. By default only this machine can connect; open the printed link in a browser.
Every request needs the token, which is stored in a file that only you can read."""


def declare_serve(parser: ArgumentParser) -> None:
    parser.description = _SERVE_DESCRIPTION
    parser.epilog = format_examples(
        "outrider serve",
        "outrider serve --port 8765",
        "outrider serve --socket ~/.outrider.sock",
        "outrider serve --database postgresql://runs.example/outrider",
        "outrider serve --host 0.0.0.0 --name build.example --expose --tls-cert c.pem --tls-key k.pem",
        "outrider serve --public-url https://tools.example/outrider",
    )
    defaults = read_option_defaults()
    add_cwd_option(parser)
    listen = parser.add_argument_group("listen address")
    listen.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on (127.0.0.1)")
    listen.add_argument(
        "--port", type=parse_port, metavar="N", help="the port; 0 is any free one (default: 8765 if it is free)"
    )
    listen.add_argument("--socket", metavar="PATH", help="listen on a Unix socket instead")
    listen.add_argument("--expose", action="store_true", help="accept connections from other machines; requires TLS")
    listen.add_argument("--name", action="append", default=[], metavar="HOST", help="a host name that clients may use")
    listen.add_argument("--tls-cert", metavar="FILE", help="TLS certificate (PEM)")
    listen.add_argument("--tls-key", metavar="FILE", help="TLS key (PEM)")
    proxy = parser.add_argument_group("reverse proxy")
    proxy.add_argument(
        "--public-url",
        metavar="URL",
        default=defaults.public_url or None,
        help="the address that a reverse proxy serves, with a path if it has one (OUTRIDER_PUBLIC_URL)",
    )
    proxy.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="an address or network whose X-Forwarded headers are believed, besides this machine's own",
    )
    _add_login_options(parser, defaults)
    parser.add_argument(
        "--user-folders",
        metavar="FOLDER",
        default=defaults.user_folders or None,
        help="users without a workspace work in a folder of their name in this one (OUTRIDER_USER_FOLDERS)",
    )
    service = parser.add_argument_group("service")
    service.add_argument(
        "--grace",
        type=parse_duration,
        metavar="TIME",
        help="time for running turns after SIGTERM (default: 20s)",
    )
    add_health_options(service)
    add_database_option(parser)
    parser.add_argument("--mcp", action="store_true", help="also serve MCP for other agents at /mcp")
    browsers = parser.add_argument_group("browsers")
    browsers.add_argument(
        "--link", action="store_true", help="print a sign-in link of the server that runs on this port, and exit"
    )
    browsers.add_argument(
        "--new-token", action="store_true", help="replace the server's token, and sign all browsers out"
    )
    add_agent_options(parser)
    parser.set_defaults(execute="outrider.cli.commands.serve:start_server")


_MCP_SERVE_DESCRIPTION = """\
Run as an MCP server on stdin and stdout. Other agents can run an agent in this folder, and search and read its
sessions. Approvals are asked for if the client supports it, else denied. Allow calls with --allow."""


def declare_mcp(parser: ArgumentParser) -> None:
    parser.description = "Manage the MCP servers that your agents use. Without a subcommand, run as an MCP server."
    parser.epilog = format_examples(
        "outrider mcp add files -- npx -y @modelcontextprotocol/server-filesystem .",
        "outrider mcp add tickets --url https://mcp.example.com/mcp",
        "outrider mcp login tickets",
        "outrider mcp test",
        "outrider mcp import",
        "outrider mcp serve --cwd ~/project --mode plan",
    )
    parser.set_defaults(default_subcommand="serve")
    subparsers = parser.add_subparsers(
        title=SUBCOMMANDS_TITLE, metavar="WHAT", required=True, parser_class=type(parser)
    )

    def add(name: str, help: str, execute: str, server: str = "") -> ArgumentParser:
        subparser = subparsers.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        if server:
            subparser.add_argument("name", metavar="NAME", nargs=None if server == "required" else "?", default="")
        add_cwd_option(subparser)
        subparser.set_defaults(execute=f"outrider.cli.commands.mcp:{execute}")
        return subparser

    list_parser = add("list", "list your servers and those of this folder", "list_servers")
    list_parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_parser = add("add", "add a server: a command after --, or --url", "add_server", "required")
    add_parser.add_argument("command", metavar="-- COMMAND", nargs="*", help="the program and its arguments, after --")
    add_parser.set_defaults(takes_command=True)
    add_parser.add_argument("--url", help="the address of a server that is reached over HTTP")
    add_parser.add_argument(
        "--sse", action="store_true", help="the server uses the older transport with server-sent events"
    )
    header = add_parser.add_argument("--header", metavar="NAME:VALUE", action="append", default=[])
    header.help = "an HTTP header; ${VARIABLE} in the value is replaced when the server is started"
    add_parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="a variable of the command"
    )
    add_parser.add_argument("--project", action="store_true", help="write to .mcp.json of this folder, for everyone")
    add_parser.add_argument("--force", action="store_true", help="replace a server with the same name")
    remove_parser = add("remove", "remove a server and its login", "remove_server", "required")
    remove_parser.add_argument("--project", action="store_true", help="remove it from .mcp.json of this folder")
    add("test", "connect to one server or all, and print what they offer", "test_server", "optional")
    login = add("login", "log in to a server in the browser (OAuth)", "log_in", "required")
    login.add_argument("--no-browser", action="store_true", help="only print the address")
    add("logout", "delete the login of a server", "log_out", "required")
    import_parser = add("import", "add the servers of other tools' configuration files", "import_servers")
    import_parser.add_argument("file", metavar="FILE", nargs="?", help="a file; without it, those in your home folder")
    import_parser.add_argument("--dry-run", action="store_true", help="print what would be imported")
    serve_parser = subparsers.add_parser("serve", help="run as an MCP server for other agents, on stdio (default)")
    serve_parser.description = _MCP_SERVE_DESCRIPTION
    add_cwd_option(serve_parser)
    add_agent_options(serve_parser)
    serve_parser.set_defaults(execute="outrider.cli.commands.serve:serve_mcp")


def _add_login_options(parser: ArgumentParser, defaults: OptionDefaults) -> None:
    login = parser.add_argument_group(
        "login provider", "OpenID Connect; the secret of the client is in OUTRIDER_OIDC_CLIENT_SECRET"
    )
    for name, metavar, default, help in (
        ("issuer", "URL", defaults.oidc_issuer, "such as https://login.example/realms/team (OUTRIDER_OIDC_ISSUER)"),
        ("client-id", "ID", defaults.oidc_client_id, "the client that is registered there (OUTRIDER_OIDC_CLIENT_ID)"),
        ("role-claim", "NAME", defaults.oidc_role_claim, "the claim that decides the role (default: groups)"),
        ("name-claim", "NAME", defaults.oidc_name_claim, "the claim of the user name (default: preferred_username)"),
    ):
        login.add_argument(f"--oidc-{name}", metavar=metavar, default=default or None, help=help)
    login.add_argument(
        "--oidc-role",
        action="append",
        default=defaults.oidc_role_pairs,
        metavar="VALUE=ROLE",
        help="the role of a value of the claim; may be repeated (OUTRIDER_OIDC_ROLES, with commas)",
    )
    login.add_argument("--oidc-default-role", choices=("viewer", "operator", "admin"), help="for users without one")


def declare_users(parser: ArgumentParser) -> None:
    parser.description = (
        "Manage the users of your server. Viewers read what is shared with them; operators also work in their own "
        "sessions; administrators may do everything. Running servers notice changes with the next request."
    )
    parser.epilog = format_examples(
        "outrider users add ana --role operator --workspace /srv/ana --budget 50",
        "outrider users token ana --label laptop --days 90",
        "outrider users link ana --port 8765",
        "outrider users team research --budget 400",
    )
    parser.set_defaults(default_subcommand="list")
    subparsers = parser.add_subparsers(
        title=SUBCOMMANDS_TITLE, metavar="WHAT", required=True, parser_class=type(parser)
    )

    def add(name: str, help: str, execute: str, *, metavar: str = "NAME") -> ArgumentParser:
        subparser = subparsers.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        if metavar:
            subparser.add_argument("name", metavar=metavar)
        subparser.set_defaults(execute=f"outrider.cli.commands.serve:{execute}")
        return subparser

    list_parser = add("list", "list the users (default)", "list_users", metavar="")
    list_parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_parser = add("add", "add a user and print a token", "add_user")
    add_parser.add_argument("--no-token", action="store_true", help="create no token: the user signs in by other means")
    change_parser = add("set", "change a user", "change_user")
    for subparser in (add_parser, change_parser):
        subparser.add_argument("--role", choices=("viewer", "operator", "admin"), help="the rights (default: operator)")
        subparser.add_argument("--team", help="the team, which may have a common budget")
        subparser.add_argument("--workspace", metavar="FOLDER", help="the folder that sessions of the user stay in")
        _add_limit_options(subparser)
    for subparser in (add_parser, add("token", "print a new token of a user", "create_token")):
        subparser.add_argument("--label", default="", help="a name for the token")
        subparser.add_argument("--days", type=float, metavar="N", help="days until the token ends (default: never)")
    revoke_parser = add("revoke", "revoke a token of a user", "revoke_token")
    revoke_parser.add_argument("token", metavar="TOKEN", help="the id that `outrider users list` prints")
    remove_parser = add("remove", "remove a user; sessions stay, for administrators", "remove_user")
    remove_parser.add_argument(
        "--forget", action="store_true", help="the next user who logs in with this name gets the sessions"
    )
    _add_limit_options(add("team", "set the limits of a team", "change_team", metavar="TEAM"))
    link_parser = add("link", "print a link that signs a browser in as the user", "print_login_link")
    link_parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="the address of the running server")
    link_parser.add_argument("--port", type=parse_port, metavar="N", help="its port (default: 8765)")
    link_parser.set_defaults(tls_cert=None)


def _add_limit_options(parser: ArgumentParser) -> None:
    parser.add_argument("--budget", type=parse_cost, metavar="DOLLARS", help="the cost per calendar month")
    parser.add_argument("--rate", type=float, metavar="N", help="requests per second")


def declare_audit(parser: ArgumentParser) -> None:
    parser.description = (
        "Print the audit log of your server: sign-ins, changes, answered approvals and denied requests, newest last."
    )
    parser.epilog = format_examples("outrider audit", "outrider audit --user ana --since 24h", "outrider audit --json")
    parser.add_argument("--user", metavar="NAME", help="only what this user did")
    parser.add_argument("--action", choices=("sign-in", "request", "approval", "denied"), help="only entries of a kind")
    parser.add_argument("--since", type=parse_duration, default=7 * 86_400.0, metavar="TIME", help="(default: a week)")
    parser.add_argument("-n", "--limit", type=parse_positive_int, default=200, metavar="N", help="(default: 200)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(execute="outrider.cli.commands.serve:show_audit")
