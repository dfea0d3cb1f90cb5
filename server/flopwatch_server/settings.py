"""Every setting of the server, each by an environment variable FLOPWATCH_<NAME>, in one place."""

import os
import re
from difflib import get_close_matches
from math import ceil
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RedisDsn,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

LATE_SAMPLE_SECONDS = 48 * 3600
"""Samples are taken no later than this after the fact; what comes later is refused, as a gap."""

_LEAST_RAW_DAYS = 1 + ceil(LATE_SAMPLE_SECONDS / 86_400)  # one more, to make minutes of the latest


def default_data_dir() -> Path:
    """Where the embedded database lives if nothing else is said."""
    if os.geteuid() == 0:
        return Path("/var/lib/flopwatch")
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "flopwatch"


class Thresholds(BaseModel):
    """What makes a device-minute idle, low, active or unknown: used by every figure and page.

    A sample is idle when SM activity is below `idle_sm_active` and utilization is 0, of those that
    are known (one at least). It is suspect when activity is 0 while utilization is at least
    `suspect_utilization`, or idle while math runs or power is more than `suspect_power_share` of
    the board's limit.
    """

    model_config = ConfigDict(extra="forbid")

    idle_sm_active: float = 0.01
    low_sm_active: float = 0.15
    coverage: float = 0.80
    suspect_utilization: float = 0.50
    suspect_power_share: float = 0.50


class Retention(BaseModel):
    """How many days samples, minutes and hours of devices are kept at least; None is for ever.

    They are dropped in whole partitions (a day, a week, a quarter), each when its newest row is
    that old and all that is made of it is there. Samples outlive the latest that is still taken,
    and nothing is dropped before what it is made of.
    """

    model_config = ConfigDict(extra="forbid")

    raw_days: int = Field(default=7, ge=_LEAST_RAW_DAYS)
    minute_days: int = 90
    hour_days: int | None = None

    @model_validator(mode="after")
    def _each_outlives_what_it_is_made_of(self) -> Self:
        if self.minute_days < self.raw_days:
            raise ValueError("minute_days must not be less than raw_days")
        if self.hour_days is not None and self.hour_days < self.minute_days:
            raise ValueError("hour_days must not be less than minute_days")
        return self


class Settings(BaseSettings):
    """Settings of one server process."""

    model_config = SettingsConfigDict(env_prefix="FLOPWATCH_", env_nested_delimiter="__")

    database_url: str | None = Field(
        default=None, description="PostgreSQL 15+; none means embedded."
    )
    data_dir: Path = Field(default_factory=default_data_dir, description="Embedded database.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8260, ge=0, le=65535, description="Port to listen on.")
    sign_in: Literal["demo", "local"] = Field(
        default="demo",
        description="demo: no sign-in, loopback only; local: one admin with a password.",
    )
    slurm_cluster: str | None = Field(
        default=None,
        description="Name of the cluster that this machine's squeue and sacct speak for.",
    )
    slurm_rest: str | None = Field(
        default=None,
        pattern=r"^(unix:/|https?://)",
        description="slurmrestd in place of the commands: unix:/PATH or http://HOST:PORT.",
    )
    slurm_rest_user: str | None = Field(
        default=None, description="Who asks slurmrestd by URL: the user of the token."
    )
    slurm_rest_token_file: Path | None = Field(
        default=None, description="File with that user's JWT, read anew for every call."
    )
    slurm_poll_seconds: float = Field(default=30, ge=10, le=600, description="Period of squeue.")
    gpu_peaks: Path | None = Field(
        default=None, description="Site's own rows for the table of GPU peaks."
    )
    thresholds: Thresholds = Thresholds()
    retention: Retention = Retention()
    redis_url: RedisDsn | None = Field(
        default=None, description="Where worker and beat meet: redis:// or rediss://."
    )
    work: Literal["in_process", "celery"] = Field(
        default="in_process",
        validate_default=True,
        description="Who does the periodic work: the server, or 'flopwatch worker' and 'beat'.",
    )

    @model_validator(mode="after")
    def _slurmrestd_is_of_a_cluster(self) -> Self:
        if self.slurm_rest is not None and self.slurm_cluster is None:
            raise ValueError("slurm_rest needs slurm_cluster, the cluster's name, too")
        return self

    @field_validator("work")
    @classmethod
    def _has_what_it_needs(cls, work: str, others: ValidationInfo) -> str:
        """Processes apart need a database and a Redis that each of them can reach."""
        needed = {"redis_url": "a Redis", "database_url": "a PostgreSQL"}
        if work == "celery":
            for name, what in needed.items():
                if others.data.get(name, "invalid") is None:
                    raise ValueError(f"celery needs {what} in FLOPWATCH_{name.upper()}")
        elif others.data.get("redis_url") is not None:
            raise ValueError("in_process has no use for FLOPWATCH_REDIS_URL: give both or neither")
        return work


class SettingsError(ValueError):
    """A setting can't be used; the text names its variable and what is wrong with it."""


# Read by other parts that may run in the same environment.
_OTHERS = re.compile("FLOPWATCH_(AGENT_.*|SOCKET|PROLOG_DIR|JOB_ID|URL|FEED_TOKEN_FILE|PUBLISH)$")


def load_settings(**given: Any) -> Settings:
    """Settings from the environment, with what a command line gave in their place.

    Raises SettingsError, for a variable that is no setting too: a misspelt one would be ignored.
    """
    known = {f"FLOPWATCH_{name}".upper() for name in Settings.model_fields}
    for variable in os.environ:
        name = variable.partition("__")[0]
        if variable.startswith("FLOPWATCH_") and name not in known and not _OTHERS.match(name):
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SettingsError(f"{variable} is no setting{hint}")
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = (
            f"FLOPWATCH_{'__'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
            for problem in error.errors()
        )
        raise SettingsError("; ".join(problems)) from error
