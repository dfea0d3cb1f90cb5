"""Every table of the house, for whoever needs the whole schema: migrations' check and tests."""

import flopwatch_server.access.models
import flopwatch_server.efficiency.models
import flopwatch_server.fleet.models
import flopwatch_server.jobs.local.models
import flopwatch_server.jobs.models
import flopwatch_server.people.models
import flopwatch_server.scheduler.models
import flopwatch_server.telemetry.models  # noqa: F401
from flopwatch_server.database.base import Base

metadata = Base.metadata
