"""The fleet as the API shows it."""

from pydantic import BaseModel


class ClusterView(BaseModel):
    """One scheduler's realm; `simulated` says that nothing in it is real."""

    name: str
    simulated: bool
