"""Fair share as a scheduler would tell it, from the usage that the cluster's own jobs make.

Usage is GPU-seconds that decay, as with Slurm's PriorityDecayHalfLife. Factors are those of Fair
Tree (slurm.schedmd.com/fair_tree.html): ranks of accounts by their level, in each its users.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple, TypeVar

from flopwatch_simulation.job import Job
from flopwatch_simulation.people import Person

WINDOW_SECONDS = 86_400
"""Usage that is older is forgotten: it would count a sixteenth at most."""

_PERIOD_SECONDS = 300
_HALF_LIFE_SECONDS = 21_600
_GRANTS = (10, 20, 40, 60)
_Name = TypeVar("_Name", bound=Hashable)


class Standing(NamedTuple):
    """The fair share of one among those on its level of the tree; see sshare(1)."""

    raw_shares: int
    norm_shares: float
    raw_usage: int
    effective_usage: float
    level_fs: float

    def told(self) -> dict[str, Any]:
        """As fields of the feed: JSON has no number for a level of which nothing was used."""
        level = self.level_fs if math.isfinite(self.level_fs) else "Infinity"
        return {**self._asdict(), "level_fs": level}


def are_due(time: float, told_until: float) -> bool:
    """Whether the scheduler has reckoned them anew in (told_until, time]."""
    return time // _PERIOD_SECONDS > told_until // _PERIOD_SECONDS


def usage(jobs: Iterable[Job], time: float) -> Counter[Person]:
    """Decayed GPU-seconds of each person at `time`, from what their jobs held in the window."""
    used: Counter[Person] = Counter()
    for job in jobs:
        if job.started_at is not None and job.started_at < time:
            oldest = min(time - job.started_at, WINDOW_SECONDS)
            newest = min(max(time - job.ended_at, 0.0), oldest)
            used[job.person] += round(job.gpu_count * (_worth(newest) - _worth(oldest)))
    return used


def share_lines(
    seed: int, people: Iterable[Person], used: Mapping[Person, int]
) -> Iterator[dict[str, Any]]:
    """The shares of all accounts and of their people, each account before its people."""
    members: defaultdict[str, list[Person]] = defaultdict(list)
    for person in people:
        members[person.account].append(person)
    grants = {account: Random(f"{seed}/{account}").choice(_GRANTS) for account in members}
    spent = {account: sum(used[person] for person in own) for account, own in members.items()}
    accounts = standings(grants, spent)
    users: dict[Person, Standing] = {}
    for own in members.values():
        users |= standings(dict.fromkeys(own, 1), {person: used[person] for person in own})
    factors = fair_tree(
        {who: (accounts[who.account].level_fs, users[who].level_fs) for who in users}
    )
    for account, own in members.items():
        yield {"kind": "share", "account": account, **accounts[account].told()}
        for who in own:
            yield {"kind": "share", "account": account, "user": who.user, **users[who].told(),
                   "fair_share": factors[who]}  # fmt: skip


def standings(shares: Mapping[_Name, int], used: Mapping[_Name, int]) -> dict[_Name, Standing]:
    """The standing of each among all that share one level, from its shares and its usage."""
    all_shares, all_used = sum(shares.values()), sum(used.values())
    found = {}
    for name, own in shares.items():
        norm = own / all_shares
        effective = used[name] / all_used if all_used else 0.0
        level = norm / effective if effective else math.inf
        found[name] = Standing(own, norm, used[name], effective, level)
    return found


def fair_tree(levels: Mapping[_Name, tuple[float, ...]]) -> dict[_Name, float]:
    """The factor of each: its rank by the levels from the root down, over the number of all.

    The first has 1; those whose levels are the same have the same factor.
    """
    order = sorted(levels, key=lambda name: levels[name], reverse=True)
    first: dict[tuple[float, ...], int] = {}
    for rank, name in enumerate(order):
        first.setdefault(levels[name], rank)
    return {name: (len(order) - first[levels[name]]) / len(order) for name in order}


def _worth(age: float) -> float:
    """Seconds up to `age` ago, each worth half of what one a half-life later is worth."""
    return _HALF_LIFE_SECONDS / math.log(2) * math.exp2(-age / _HALF_LIFE_SECONDS)
