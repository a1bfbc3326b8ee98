"""Defaults of command line options that are variables of the environment. It loads no library: the parser needs it."""

import os
from collections.abc import Mapping
from typing import NamedTuple

SERVER_TOKEN_VARIABLE = "OUTRIDER_SERVER_TOKEN"


class OptionDefaults(NamedTuple):
    """The values of variables; "" for one that is not set. The comments name the variables."""

    health: str = ""  # OUTRIDER_HEALTH
    log_format: str = ""  # OUTRIDER_LOG_FORMAT
    database_url: str = ""  # OUTRIDER_DATABASE_URL
    listen_url: str = ""  # OUTRIDER_LISTEN_URL
    public_url: str = ""  # OUTRIDER_PUBLIC_URL
    user_folders: str = ""  # OUTRIDER_USER_FOLDERS
    oidc_issuer: str = ""  # OUTRIDER_OIDC_ISSUER
    oidc_client_id: str = ""  # OUTRIDER_OIDC_CLIENT_ID
    oidc_client_secret: str = ""  # OUTRIDER_OIDC_CLIENT_SECRET
    oidc_role_claim: str = ""  # OUTRIDER_OIDC_ROLE_CLAIM
    oidc_name_claim: str = ""  # OUTRIDER_OIDC_NAME_CLAIM
    oidc_roles: str = ""  # OUTRIDER_OIDC_ROLES, VALUE=ROLE with commas
    server_token: str = ""  # OUTRIDER_SERVER_TOKEN, of the server of --attach
    token: str = ""  # OUTRIDER_TOKEN, of the server that `sessions import` reads from
    user: str = ""  # OUTRIDER_USER, who takes turns in a queue

    @property
    def oidc_role_pairs(self) -> list[str]:
        """The pairs VALUE=ROLE of `oidc_roles`."""
        return [pair.strip() for pair in self.oidc_roles.split(",") if pair.strip()]


def read_option_defaults(environ: Mapping[str, str] = os.environ) -> OptionDefaults:
    """Reads the variables of the options, which are named after the fields."""
    values = {name: environ.get(f"OUTRIDER_{name.upper()}", "").strip() for name in OptionDefaults._fields}
    return OptionDefaults(**values)


def choices_of_environment(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Returns which of model, mode, approval level and effort the environment sets; `read_settings` reads them."""
    names = ("model", "mode", "approval", "effort")
    return frozenset(name for name in names if environ.get(f"OUTRIDER_{name.upper()}"))
