"""A secret in the settings: given itself, or as where it is kept.

Written `keyring:NAME` it is the password that the system keyring has for the service `edgecloud` under that
name, written `env:NAME` the value of that environment variable. It is never printed.
"""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from edgecloud.errors import ConfigError
from edgecloud.folders import APP


def _from_elsewhere(value: object) -> object:
    if isinstance(value, str) and value.startswith("env:"):
        variable = value.removeprefix("env:")
        if not os.environ.get(variable):
            raise ConfigError(f"The secret {value!r} needs the environment variable {variable}: set it.")
        return os.environ[variable]
    return _from_keyring(value)


def _from_elsewhere_if_there(value: object) -> object:
    """As above, but a variable that isn't set is left to whoever needs the secret: one server's key must not
    keep everything else from working.
    """
    is_missing = isinstance(value, str) and value.startswith("env:") and not os.environ.get(value[4:])
    return value if is_missing else _from_elsewhere(value)


def _from_keyring(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("keyring:"):
        return value
    name = value.removeprefix("keyring:")
    try:
        import keyring
    except ImportError:
        raise ConfigError(
            f"The secret {value!r} needs the system keyring: `pip install keyring`, or give it itself."
        ) from None
    try:
        password = keyring.get_password(APP, name)
    except keyring.errors.KeyringError as error:
        raise ConfigError(f"The secret {value!r} cannot be read: {error}.") from error
    if password is None:
        raise ConfigError(f"The keyring has no secret {name!r}: `keyring set {APP} {name}` puts it there.")
    return password


Secret = Annotated[SecretStr, BeforeValidator(_from_elsewhere)]
LaterSecret = Annotated[SecretStr, BeforeValidator(_from_elsewhere_if_there)]
