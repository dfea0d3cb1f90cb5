"""Who uses the simulated cluster: accounts, and the people in them.

Every account has a roster of people. Blocks of a larger cluster have accounts of their own, until
there are some hundreds; from then on they share.
"""

from dataclasses import dataclass

ACCOUNTS = (
    "nlp", "vision", "medimg", "biology", "climate", "speech", "genai", "chem", "robotics",
    "physics", "astro", "teaching",
)  # fmt: skip
PEOPLE_PER_ACCOUNT = 4
ROSTERS = 24
_FIRST_UID = 20_001
_SURNAMES = (
    "kovacs", "chen", "diallo", "okafor", "moreau", "nakamura", "park", "garcia", "singh", "lind",
    "walker", "bianchi", "volkova", "mbeki", "yilmaz", "hoffmann", "sato", "fischer", "kim",
    "santos", "novak", "haddad", "jansen", "osei", "larsson", "petrov", "rossi", "tanaka", "ali",
    "costa", "dubois", "eriksen", "farah", "gomez", "huang", "ivanova", "joshi", "keller", "lopez",
    "mueller", "nguyen", "olsen", "patel", "qureshi", "reyes", "schmidt", "torres", "ueda",
    "vargas", "weber", "yamada", "zhou",
)  # fmt: skip
_INITIALS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Person:
    """A user of one account."""

    user: str
    account: str
    uid: int


def person(account: str, block: int, seat: int) -> Person:
    """The person in this seat of the account's roster, as a block of nodes knows it."""
    roster = block % ROSTERS
    place = (ACCOUNTS.index(account) * ROSTERS + roster) * PEOPLE_PER_ACCOUNT + seat
    return Person(
        _name(place), account if roster == 0 else f"{account}{roster}", _FIRST_UID + place
    )


def _name(place: int) -> str:
    """Initial and surname, another for every place: 365 = 1 mod 26, so no surname meets an
    initial twice."""
    surname = _SURNAMES[place % len(_SURNAMES)]
    return _INITIALS[(place // len(_SURNAMES) + 7 * place) % len(_INITIALS)] + surname
