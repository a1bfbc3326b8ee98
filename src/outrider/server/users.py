"""Users of a server: their roles, tokens, shared sessions, limits, and the log of what they did.

Without users, the holder of the server's token is the one administrator and owns everything."""

import asyncio
import hashlib
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Literal

import msgspec

from outrider.config.stored_keys import KeyStore
from outrider.engine.archive import SessionFilter
from outrider.engine.engine import Engine
from outrider.engine.frontend import archive_of, lock_file, write_private_file
from outrider.errors import ConfigurationError, LimitReachedError
from outrider.presentation.formats import format_cost, format_dollars
from outrider.types.ids import now_ms

if TYPE_CHECKING:
    from outrider.engine.session_tools import OwnerLimits

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
ShareLevel = Literal["read", "write"]
SERVER_USER = "server"  # the name under which the holder of the server's token acts
EVERYONE = "*"
TEAM_MARK = "team:"
TOKEN_MARK = "otr_"
TOKEN_BYTES = 32
MAX_CLIENTS = 10_000
_NO_SANDBOX_MARK = "no-sandbox"  # an empty file beside the users
_NAME = re.compile(r"[A-Za-z0-9][\w.@+-]{0,99}", re.ASCII)


class UserToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a user; only its hash is stored. Times are Unix time; `expires` is 0 if the token does not expire."""

    id: str
    hash: str
    label: str = ""
    created: float = 0
    expires: float = 0


class ServerUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the server.

    - `name`: identifies the user, and owns their sessions.
    - `role`: what the user may do.
    - `team`: the name of the user's team, "" for none.
    - `tokens`: the tokens that sign the user in.
    - `workspace`: the folder that their sessions stay in.
    - `budget`: dollars per calendar month (UTC).
    - `rate`: requests per second.
    - `subject`: the identity at the login provider.
    - `created`: Unix time; logins from before it are those of an earlier user of this name.
    """

    name: str
    role: Role = "operator"
    team: str = ""
    tokens: tuple[UserToken, ...] = ()
    workspace: str = ""
    budget: Decimal | None = None
    rate: float | None = None
    subject: str = ""
    created: float = 0


class ServerTeam(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that the users of a team share."""

    name: str
    budget: Decimal | None = None
    rate: float | None = None


class SessionShare(msgspec.Struct, frozen=True, kw_only=True):
    """Gives a user, a team ("team:NAME") or everyone ("*") access to a session and the sessions that it called."""

    session_id: str
    to: str
    level: ShareLevel = "read"


class DeletedCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a user's deleted sessions since the start of a month; `since` is in Unix milliseconds."""

    owner: str
    since: int
    cost: Decimal


class _UserFile(msgspec.Struct, frozen=True, kw_only=True):
    """`former` are removed users, whose names still own their sessions."""

    users: tuple[ServerUser, ...] = ()
    former: tuple[ServerUser, ...] = ()
    teams: tuple[ServerTeam, ...] = ()
    shares: tuple[SessionShare, ...] = ()
    deleted_costs: tuple[DeletedCost, ...] = ()


class Requester(msgspec.Struct, frozen=True):
    """Who sends a request. The default is the holder of the server's token."""

    name: str = SERVER_USER
    role: Role = "admin"
    team: str = ""

    @classmethod
    def from_user(cls, user: ServerUser) -> "Requester":
        return cls(user.name, user.role, user.team)

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"

    @property
    def owner(self) -> str:
        """The owner of sessions that this requester creates; "" for the holder of the server's token."""
        return "" if self.name == SERVER_USER else self.name


SERVER_REQUESTER = Requester()


class AccessDeniedError(Exception):
    """The requester may not do this; the message says why."""


class UserDirectory:
    """The users in a file, which `outrider users` and running servers change; each request sees the newest state.
    Users without a workspace have a folder of their name in `folders`, if it is given, or else share one."""

    def __init__(
        self,
        path: Path | None = None,
        clock: Callable[[], float] = time,
        *,
        folders: Path | None = None,
        shared: Path | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._folders = folders
        self._shared = shared
        self._limits: dict[str, OwnerLimits | None] = {}
        self._keys: dict[str, tuple[int, dict[str, str]]] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._content = _UserFile()
        self._by_hash: dict[str, tuple[ServerUser, UserToken]] = {}

    @property
    def users(self) -> tuple[ServerUser, ...]:
        return self._read().users

    @property
    def teams(self) -> tuple[ServerTeam, ...]:
        return self._read().teams

    def get(self, name: str) -> ServerUser | None:
        return next((user for user in self.users if user.name == name), None)

    def find_folder(self, name: str) -> Path | None:
        """Returns the folder that sessions of a user stay in; None if that is the folder of the server."""
        user = self.get(name)
        if user is not None and user.workspace:
            return Path(user.workspace)
        return self._folders / name if self._folders is not None and _NAME.fullmatch(name) else None

    def limits_of_owner(self, owner: str) -> "OwnerLimits | None":
        """Returns the limits of the sessions of a user; None for administrators, and on a server that never had
        users."""
        content = self._read()
        if not owner or not (content.users or content.former):
            return None
        if owner not in self._limits:
            self._limits[owner] = self._find_limits(owner, content)
        return self._limits[owner]

    def _find_limits(self, owner: str, content: _UserFile) -> "OwnerLimits | None":
        from outrider.engine.session_tools import OwnerLimits  # lazy: `outrider users` does not need the tools

        users_by_name = {user.name: user for user in content.users}
        if owner in users_by_name and users_by_name[owner].role == "admin":
            return None
        own_folder = self.find_folder(owner)
        other_users = (user for user in (*content.users, *content.former) if user.name != owner)
        folders = [Path(user.workspace) for user in other_users if user.workspace]
        hidden = {str(folder.resolve()) for folder in (*folders, *([self._folders] if self._folders else ()))}
        folder = own_folder or self._shared
        real = str(folder.resolve()) if folder is not None else ""
        return OwnerLimits(tuple(sorted(hidden - ({real} if own_folder is not None else set[str]()))), real)

    @property
    def has_operators(self) -> bool:
        """Whether there are users whose commands run in a sandbox only."""
        return any(user.role == "operator" for user in self.users)

    def record_sandbox(self, *, declined: bool) -> None:
        """Stores whether the server was started with `--no-sandbox`, for `outrider doctor`."""
        if self._path is None:
            return
        mark = self._path.with_name(_NO_SANDBOX_MARK)
        if declined:
            mark.touch(mode=0o600)
        else:
            mark.unlink(missing_ok=True)

    @property
    def declined_sandbox(self) -> bool:
        """Whether the server was last started with `--no-sandbox`."""
        return self._path is not None and self._path.with_name(_NO_SANDBOX_MARK).exists()

    def key_store(self, name: str) -> KeyStore | None:
        """Returns the keys of models that belong to a user; None if nothing is stored on this server."""
        if self._path is None or self.get(name) is None:
            return None
        return KeyStore(self._key_file(self._path, name), uses_keyring=False)

    def _key_file(self, path: Path, name: str) -> Path:
        return path.parent / "keys" / f"{name}.json"

    def keys_of_owner(self, owner: str) -> Mapping[str, str]:
        """Returns the keys of a user by provider; a file that has not changed is read once."""
        if self._path is None or not _NAME.fullmatch(owner):
            return {}
        try:
            stamp = self._key_file(self._path, owner).stat().st_mtime_ns
        except OSError:
            return {}
        if self._keys.get(owner, (0, {}))[0] != stamp:
            store = self.key_store(owner)
            self._keys[owner] = stamp, dict(store.read_keys()) if store is not None else {}
        return self._keys[owner][1]

    def get_team(self, name: str) -> ServerTeam | None:
        return next((team for team in self.teams if team.name == name), None) if name else None

    def find_by_token(self, token: str) -> tuple[ServerUser, str] | None:
        """Returns the user of a token that has not expired, and the id of the token."""
        self._read()
        entry = self._by_hash.get(hash_secret(token))
        return (entry[0], entry[1].id) if entry is not None and self._is_valid(entry[1]) else None

    def has_token(self, name: str, token_id: str) -> bool:
        """Returns whether the user has a token with this id that has not expired."""
        user = self.get(name)
        return user is not None and any(token.id == token_id and self._is_valid(token) for token in user.tokens)

    def _is_valid(self, token: UserToken) -> bool:
        return not token.expires or token.expires > self._clock()

    def find_by_subject(self, subject: str) -> ServerUser | None:
        return next((user for user in self.users if subject and user.subject == subject), None)

    @property
    def former(self) -> tuple[ServerUser, ...]:
        """The removed users, without tokens."""
        return self._read().former

    def find_former(self, *, name: str = "", subject: str = "") -> ServerUser | None:
        """Returns a removed user, without tokens, by the name or by the identity at the login provider."""
        matches = (user for user in self._read().former if user.name == name or (subject and user.subject == subject))
        return next(matches, None)

    def put(self, user: ServerUser) -> None:
        """Adds or replaces a user; a new one gets the sessions of a former user of this name. Raises ConfigurationError
        for an invalid name or role."""
        if not _NAME.fullmatch(user.name) or user.name == SERVER_USER:
            raise ConfigurationError(f"{user.name!r} cannot be the name of a user: use letters, digits and . _ @ + -")
        if user.role not in ROLES:
            raise ConfigurationError(f"{user.role!r} is not a role; use one of: {', '.join(ROLES)}")
        with self._change() as content:
            existing = next((candidate for candidate in content.users if candidate.name == user.name), None)
            user = msgspec.structs.replace(user, created=existing.created if existing else self._clock())
            self._put(content, user)

    def change(self, name: str, apply: Callable[[ServerUser], ServerUser]) -> ServerUser:
        """Replaces a user by what `apply` returns, without losing a change that another process makes. Raises
        ConfigurationError if there is no such user."""
        with self._change() as content:
            user = apply(self._require(name))
            self._put(content, user)
            return user

    def _put(self, content: _UserFile, user: ServerUser) -> None:
        other_users = [other for other in content.users if other.name != user.name]
        former = tuple(other for other in content.former if other.name != user.name)
        self._write(msgspec.structs.replace(content, users=(*other_users, user), former=former))

    def remove(self, name: str, *, forget: bool = False) -> bool:
        """Removes a user with all tokens, keys and shares. Their sessions stay, and administrators can open them. No
        other account of the login provider can get the name, unless `forget` is set. Returns False if there is no such
        user."""
        with self._change() as content:
            removed = [user for user in (*content.users, *content.former) if user.name == name]
            users = tuple(user for user in content.users if user.name != name)
            former = tuple(user for user in content.former if user.name != name)
            if removed and not forget:
                former = (*former, msgspec.structs.replace(removed[0], tokens=()))
            shares = tuple(share for share in content.shares if share.to != name)
            if removed and self._path is not None:
                self._key_file(self._path, name).unlink(missing_ok=True)
            self._write(msgspec.structs.replace(content, users=users, former=former, shares=shares))
            return len(users) < len(content.users) or (forget and bool(removed))

    def put_team(self, team: ServerTeam) -> None:
        with self._change() as content:
            other_teams = [other for other in content.teams if other.name != team.name]
            self._write(msgspec.structs.replace(content, teams=(*other_teams, team)))

    def create_token(self, name: str, *, label: str = "", days: float | None = None) -> str:
        """Returns a new token of the user; it cannot be read again."""
        token, now = TOKEN_MARK + secrets.token_urlsafe(TOKEN_BYTES), self._clock()
        stored = UserToken(
            id=secrets.token_hex(4),
            hash=hash_secret(token),
            label=label,
            created=now,
            expires=now + days * 86_400 if days else 0,
        )
        self.change(name, lambda user: msgspec.structs.replace(user, tokens=(*user.tokens, stored)))
        return token

    def revoke_token(self, name: str, token_id: str) -> bool:
        before = self._require(name)

        def revoke(user: ServerUser) -> ServerUser:
            return msgspec.structs.replace(user, tokens=tuple(token for token in user.tokens if token.id != token_id))

        return len(self.change(name, revoke).tokens) < len(before.tokens)

    def shares_of(self, session_id: str) -> list[SessionShare]:
        return [share for share in self._read().shares if share.session_id == session_id]

    def share(self, share: SessionShare) -> None:
        """Stores a share. Raises ConfigurationError if there is no such user or team."""
        names = {user.name for user in self.users} | {f"{TEAM_MARK}{user.team}" for user in self.users if user.team}
        if share.to != EVERYONE and share.to not in names:
            raise ConfigurationError(f"there is no user or team {share.to!r}; a team is written as {TEAM_MARK}NAME")
        with self._change() as content:
            other_shares = (
                other for other in content.shares if (other.session_id, other.to) != (share.session_id, share.to)
            )
            self._write(msgspec.structs.replace(content, shares=(*other_shares, share)))

    def unshare(self, session_id: str, to: str | None = None) -> bool:
        """Ends the share with `to`, or all shares of a session. Returns False if there was none."""
        with self._change() as content:
            remaining = tuple(
                share for share in content.shares if share.session_id != session_id or to not in (None, share.to)
            )
            if len(remaining) < len(content.shares):
                self._write(msgspec.structs.replace(content, shares=remaining))
            return len(remaining) < len(content.shares)

    def shared_with(self, requester: Requester) -> dict[str, ShareLevel]:
        """Returns the level of access to each session that was shared with the requester."""
        names = {requester.name, EVERYONE, f"{TEAM_MARK}{requester.team}" if requester.team else EVERYONE}
        levels: dict[str, ShareLevel] = {}
        for share in self._read().shares:
            if share.to in names and levels.get(share.session_id) != "write":
                levels[share.session_id] = share.level
        return levels

    def access_level(self, requester: Requester, session_id: str, owner: str) -> ShareLevel | None:
        """Returns the requester's access to a session that no other session called; None for no access. The sessions
        of a removed user are read-only, because no budget would include their cost."""
        if requester.is_admin or (owner and owner == requester.name):
            return "write"
        level = self.shared_with(requester).get(session_id)
        return "read" if level is not None and owner and self.get(owner) is None else level

    def deleted_cost(self, owner: str, since: int) -> Decimal:
        costs = (entry.cost for entry in self._read().deleted_costs if (entry.owner, entry.since) == (owner, since))
        return next(costs, Decimal(0))

    def add_deleted_cost(self, owner: str, since: int, cost: Decimal) -> None:
        """Adds to the deleted cost of the month that starts at `since`, and removes the entries of other months."""
        with self._change() as content:
            total = self.deleted_cost(owner, since) + cost
            other_costs = (entry for entry in content.deleted_costs if entry.since == since and entry.owner != owner)
            costs = (*other_costs, DeletedCost(owner=owner, since=since, cost=total))
            self._write(msgspec.structs.replace(content, deleted_costs=costs))

    def _require(self, name: str) -> ServerUser:
        if (user := self.get(name)) is None:
            raise ConfigurationError(f"there is no user {name!r}; `outrider users list` prints them")
        return user

    def _read(self) -> _UserFile:
        if self._path is None:
            return self._content
        try:
            status = self._path.stat()
        except OSError:
            self._stamp, self._content, self._by_hash, self._limits = None, _UserFile(), {}, {}
            return self._content
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp != self._stamp:
            if os.name == "posix" and status.st_mode & 0o077:
                raise ConfigurationError(f"{self._path} is readable by other users of this machine: chmod 600 it")
            try:
                self._set(msgspec.json.decode(self._path.read_bytes(), type=_UserFile))
            except msgspec.DecodeError as error:
                raise ConfigurationError(f"{self._path} is damaged: {error}") from error
            self._stamp = stamp
        return self._content

    def _set(self, content: _UserFile) -> None:
        self._content, self._limits = content, {}
        self._by_hash = {token.hash: (user, token) for user in content.users for token in user.tokens}

    @contextmanager
    def _change(self) -> Generator[_UserFile]:
        """Locks the file while it is read and written: servers and commands change it at the same time."""
        if self._path is None:
            yield self._content
            return
        with lock_file(self._path):
            yield self._read()

    def _write(self, content: _UserFile) -> None:
        if self._path is not None:
            write_private_file(self._path, msgspec.json.format(msgspec.json.encode(content)))
            self._stamp = None
        self._set(content)


def hash_secret(secret: str) -> str:
    """Returns the hash under which a secret is stored. Secrets are long and random, so a plain hash cannot be inverted,
    and comparing hashes reveals nothing about them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


class RequestRateLimiter:
    """A token bucket."""

    def __init__(self, *, per_second: float, burst: float, clock: Callable[[], float] = monotonic) -> None:
        self.per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._refilled_at = clock()

    def allow_request(self) -> bool:
        """Takes one token from the bucket; returns False if it is empty."""
        current = self._clock()
        self._tokens = min(self._burst, self._tokens + (current - self._refilled_at) * self.per_second)
        self._refilled_at = current
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ClientRateLimits:
    """A token bucket per IPv4 address or IPv6 /64 network; beyond MAX_CLIENTS the least recently used is dropped."""

    def __init__(self, *, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, RequestRateLimiter] = OrderedDict()

    def allow_request(self, client: str) -> bool:
        name = _network_of(client)
        bucket = self._buckets.setdefault(name, RequestRateLimiter(per_second=self._per_second, burst=self._burst))
        self._buckets.move_to_end(name)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return bucket.allow_request()


def _network_of(client: str) -> str:
    """Returns the /64 network of an IPv6 address, because one client has all of it; any other string unchanged."""
    with suppress(ValueError):
        address = ip_address(client)
        if address.version == 6:
            return str(ip_address(int(address) >> 64 << 64))
    return client


MIN_RUN_COST = Decimal("0.01")  # a run that may cost less is not submitted
ReservedCost = Callable[[Collection[str]], Awaitable[Decimal]]  # what the runs of these users may still cost


LISTING_MS = 600_000  # all sessions of a user are listed again after this
CLOCK_DIFFERENCE_MS = 120_000  # how much the clocks of servers that share a store may differ


class _OwnerCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a user's sessions since the start of a month; times are Unix milliseconds.

    - `since`: the start of the month.
    - `deleted`: the cost of deleted sessions.
    - `read_at`: when the changed sessions were last read.
    - `listed_at`: when all sessions were last listed.
    - `sessions`: the sequence number and the cost of each session.
    """

    since: int = -1
    deleted: Decimal = Decimal(0)
    read_at: int = 0
    listed_at: int = 0
    sessions: dict[str, tuple[int, Decimal]] = {}


_NO_COSTS = _OwnerCosts()


class UserLimits:
    """The rate limits and budgets of users and teams. Costs are read from the store, and cached for sessions that have
    not changed. A check lists the sessions that were active since the last check; all sessions are listed before an
    input is rejected or a run is accepted."""

    def __init__(self, directory: UserDirectory, engine: Engine, clock: Callable[[], int] = now_ms) -> None:
        self._directory = directory
        self._engine = engine
        self._rates: dict[str, RequestRateLimiter] = {}
        self._clock = clock
        self._costs: dict[str, _OwnerCosts] = {}
        self.submission = asyncio.Lock()  # from the check until a run is stored

    def allow_request(self, requester: Requester) -> bool:
        user, team = self._directory.get(requester.name), self._directory.get_team(requester.team)
        is_allowed = [
            self._bucket(name, rate).allow_request()
            for name, rate in (
                (requester.name, user.rate if user else None),
                (f"{TEAM_MARK}{requester.team}", team.rate if team else None),
            )
            if rate is not None
        ]
        return all(is_allowed)

    def _bucket(self, name: str, rate: float) -> RequestRateLimiter:
        if name not in self._rates or self._rates[name].per_second != rate:
            self._rates[name] = RequestRateLimiter(per_second=rate, burst=max(1.0, rate * 4))
        return self._rates[name]

    async def check_budget(self, requester: Requester, *, reserved: ReservedCost | None = None) -> Decimal | None:
        """Returns what remains this month of the smaller budget of the user and the team; None without a budget. With
        `reserved`, the costs that runs have reserved are subtracted. Raises LimitReachedError if the user, or the users
        of the team together, have spent or reserved their budget."""
        user = self._directory.get(requester.name) or self._directory.find_former(name=requester.name)
        team = self._directory.get_team(requester.team)
        since, remaining = self._month_start(), list[Decimal]()
        if user is not None and user.budget is not None:
            remaining.append(
                await self._check(f"dollars per month for {user.name}", user.budget, [user.name], since, reserved)
            )
        if team is not None and team.budget is not None:
            users = (*self._directory.users, *self._directory.former)  # costs of removed users still count
            members = [member.name for member in users if member.team == team.name]
            limit_name = f"dollars per month for the team {team.name}"
            remaining.append(await self._check(limit_name, team.budget, members, since, reserved))
        return min(remaining, default=None)

    async def _check(
        self, limit_name: str, budget: Decimal, owners: Sequence[str], since: int, reserved: ReservedCost | None
    ) -> Decimal:
        reserved_cost = (
            Decimal(0) if reserved is None else await reserved(owners)
        )  # read first: a run that ends now counts twice, not never
        is_complete = reserved is not None
        spent = await self._sum_costs(owners, since, is_complete=is_complete)
        if spent >= budget and not is_complete:  # sessions may have been deleted since the last listing
            spent = await self._sum_costs(owners, since, is_complete=True)
        if spent >= budget:
            raise LimitReachedError(limit_name, format_dollars(budget), format_cost(spent))
        if reserved_cost and budget - spent - reserved_cost < MIN_RUN_COST:
            run_costs = f"runs that are not over may cost {format_cost(reserved_cost)}: wait for them, or cancel one"
            raise LimitReachedError(limit_name, format_dollars(budget), f"{format_cost(spent)}, and {run_costs}")
        return budget - spent - reserved_cost

    async def spent_since(self, owner: str, since: int) -> Decimal:
        """Returns the cost of the sessions of a user, with those of called agents and deleted ones, since a time in
        milliseconds."""
        return await self._sum_costs([owner], since, is_complete=True)

    async def _sum_costs(self, owners: Sequence[str], since: int, *, is_complete: bool) -> Decimal:
        total = Decimal(0)
        for owner in owners:
            self._costs[owner] = costs = await self._read_costs(owner, since, is_complete=is_complete)
            total += costs.deleted + sum((cost for _, cost in costs.sessions.values()), Decimal(0))
        return total

    async def _read_costs(self, owner: str, since: int, *, is_complete: bool) -> "_OwnerCosts":
        """Reads the costs of the sessions that were active since the last time, also in other processes, or lists all
        sessions again."""
        now, deleted = self._clock(), self._directory.deleted_cost(owner, since)
        previous = self._costs.get(owner, _NO_COSTS)
        is_complete = (
            is_complete
            or (previous.since, previous.deleted) != (since, deleted)
            or now - previous.listed_at >= LISTING_MS
        )
        sessions = {} if is_complete else dict(previous.sessions)
        active_since = since if is_complete else max(since, previous.read_at - CLOCK_DIFFERENCE_MS)
        selected = SessionFilter(owner=owner, active_since=active_since)
        async for session in archive_of(self._engine).iterate_sessions(selected):
            seq, cost = previous.sessions.get(session.id, (-1, Decimal(0)))
            if (seq, previous.since) != (session.seq, since):
                rows = await self._engine.store.statistics("model", since=since, session_id=session.id)
                cost = sum((row.cost for row in rows), Decimal(0))
            sessions[session.id] = session.seq, cost
        listed_at = now if is_complete else previous.listed_at
        return _OwnerCosts(since=since, deleted=deleted, read_at=now, listed_at=listed_at, sessions=sessions)

    def _month_start(self) -> int:
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        return int(now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)

    @asynccontextmanager
    async def count_deleted(self, owner: str) -> AsyncGenerator[None]:
        """Preserves the cost of the sessions that the block deletes: deleting them does not restore a budget."""
        since = self._month_start()
        before = await self.spent_since(owner, since) if owner else Decimal(0)
        yield
        if owner and (lost := before - await self.spent_since(owner, since)) > 0:
            self._directory.add_deleted_cost(owner, since, lost)


MAX_AUDIT_BYTES = 20 * 1024 * 1024
MAX_AUDIT_FILES = 50


class AuditLog:
    """Appends one JSON object per denied request, per change and per answered approval. At MAX_AUDIT_BYTES a new file
    is started; the old one is renamed to end with the time, and after MAX_AUDIT_FILES the oldest is removed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, action: str, **fields: object) -> None:
        now = datetime.now(UTC)
        entry = {"time": now.isoformat(timespec="milliseconds"), "action": action, **fields}
        with suppress(OSError):  # a full disk must not stop the server
            if self._path.exists() and self._path.stat().st_size > MAX_AUDIT_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.stem}.{now:%Y%m%dT%H%M%S%f}.jsonl"))
                for old in self.list_files()[: -MAX_AUDIT_FILES - 1]:
                    old.unlink(missing_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")

    def list_files(self) -> list[Path]:
        """Returns the files, oldest first."""
        older = sorted(self._path.parent.glob(f"{self._path.stem}.*.jsonl"))
        return [*older, *([self._path] if self._path.exists() else [])]

    def read(self) -> Generator[dict[str, object]]:
        """Yields the entries, oldest first. Skips a line that a crash has cut off."""
        for path in self.list_files():
            with path.open("rb") as file:
                yield from _decode_lines(file)


def _decode_lines(lines: Iterable[bytes]) -> Generator[dict[str, object]]:
    for line in lines:
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line, type=dict[str, object])
