"""Bearer keys: who may ask, and how much.

Keys are kept as SHA-256 digests. A presented key is compared with every known one in constant time, so neither its
content nor its place in the table shows in the time it takes.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc.config.values import build
from ttc.errors import ConfigError

ENV = "TTC_SERVE_KEY"
MIN_LENGTH = 8
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NANO = 10**9
"""Money is counted in whole billionths of a dollar: sums of them are exact."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one key may use; None is only bounded by the server's own limits.

    `max_budget` is in dollars, for each `budget_duration` ("1h", "30d"), or for ever. A period begins with the first
    request after the last one has ended.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_searches: int | None = None
    max_total_tokens: int | None = None
    max_budget: float | None = None
    budget_duration: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is not positive, and durations of another form."""
        for name in ("requests_per_minute", "tokens_per_minute", "max_searches", "max_total_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be >= 1 or absent, got {value}")
        if self.max_budget is not None and not (1 / NANO <= self.max_budget < math.inf):
            raise ConfigError(f"max_budget must be dollars > 0 or absent, got {self.max_budget}")
        if self.budget_duration is None:
            return
        if self.max_budget is None:
            raise ConfigError("budget_duration needs max_budget beside it: the dollars for each such time")
        if not _DURATION.fullmatch(self.budget_duration):
            form = 'a number with s, m, h or d behind it ("1h", "30d"), or absent for a budget that is never renewed'
            raise ConfigError(f"budget_duration must be {form}, got {self.budget_duration!r}")

    @property
    def budget(self) -> int | None:
        """The budget in billionths of a dollar."""
        return None if self.max_budget is None else round(self.max_budget * NANO)

    @property
    def budget_s(self) -> float:
        """Seconds after which the budget is there anew."""
        match = None if self.budget_duration is None else _DURATION.fullmatch(self.budget_duration)
        return math.inf if match is None else int(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True, slots=True)
class Key:
    """A key by name; `digest` is the SHA-256 of the secret."""

    name: str
    digest: bytes = field(repr=False)
    limits: KeyLimits = field(default_factory=KeyLimits)


class KeyRing:
    """The keys that are known now; they can be replaced while the server runs."""

    def __init__(self, keys: Sequence[Key]) -> None:
        """Without keys anyone may ask."""
        self.keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def replace(self, keys: Sequence[Key]) -> None:
        """Replace all keys by these; what a key has used stays with its name."""
        self.keys = tuple(keys)


ANYONE = Key("anyone", b"")
"""Who asks a server that has no keys."""


def key_from_secret(name: str, secret: str, limits: KeyLimits | None = None) -> Key:
    """Make a key. Raises ConfigError for a secret that is too short to be one."""
    if len(secret.strip()) < MIN_LENGTH:
        raise ConfigError(f"the key of {name} must have at least {MIN_LENGTH} characters")
    return Key(name, hashlib.sha256(secret.strip().encode()).digest(), limits or KeyLimits())


def read_keys(tables: Any, where: str) -> tuple[Key, ...]:
    """Read `[keys.NAME]` tables: `env` or `file` says where the secret is, or `sha256` holds its digest in hex.

    The environment's TTC_SERVE_KEY is a key too, without limits unless a table names it.

    Raises:
        ConfigError: a secret that is not there, is too short or is that of another key, or an unknown field.
    """
    if not isinstance(tables, Mapping):  # which may be the secret itself, as what stands in a table: it is not shown
        raise ConfigError(f"{where}: keys must be tables [keys.NAME], each with one of env, file or sha256")
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where}: keys.{name} must be a table [keys.{name}] with one of env, file or sha256")
    keys = [_read_key(name, table, where) for name, table in tables.items()]
    secret = os.environ.get(ENV)
    if secret and not any(table.get("env") == ENV for table in tables.values()):
        keys.append(key_from_secret(ENV.lower(), secret))
    names: dict[bytes, str] = {}
    for key in keys:
        if names.setdefault(key.digest, key.name) != key.name:
            raise ConfigError(
                f"{where}: the keys {names[key.digest]} and {key.name} have one secret: give each its own"
            )
    return tuple(keys)


def _read_key(name: str, table: Mapping[str, Any], where: str) -> Key:
    sources = [source for source in ("env", "file", "sha256") if source in table]
    if len(sources) != 1:
        raise ConfigError(f"{where}: keys.{name} needs one of env, file or sha256, and no secret in the file itself")
    try:
        limits = build(KeyLimits, {k: v for k, v in table.items() if k not in sources})
    except ConfigError as exc:
        raise ConfigError(f"{where}: keys.{name}: {exc}") from exc
    if sources == ["sha256"]:
        try:
            digest = bytes.fromhex(str(table["sha256"]))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise ConfigError(f"{where}: keys.{name}.sha256 must be 64 hexadecimal digits")
        return Key(name, digest, limits)
    if sources == ["env"]:
        if not _VARIABLE.fullmatch(str(table["env"])):
            raise ConfigError(f"{where}: keys.{name}.env must be the name of an environment variable, not the secret")
        secret = os.environ.get(str(table["env"]), "")
        if not secret:
            variable = table["env"] if table["env"].isupper() else "that it names"  # else it may be the secret itself
            raise ConfigError(f"{where}: keys.{name}.env: the environment variable {variable} is not set")
        return key_from_secret(name, secret, limits)
    try:
        secret = pathlib.Path(str(table["file"])).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RuntimeError) as exc:  # which may be the secret itself: it is not shown
        reason = getattr(exc, "strerror", None) or "it is no text file"
        raise ConfigError(
            f"{where}: keys.{name}.file must be the path of a file with the secret in it, which can be read: {reason}"
        ) from None
    return key_from_secret(name, secret, limits)


def find_key(presented: str, keys: Sequence[Key]) -> Key | None:
    """The key whose secret was presented; always compares with all of them."""
    digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
    match = None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            match = key
    return match
