"""Why a run waits, in five classes."""

import re
from typing import Literal

PendingClass = Literal["resources", "priority", "limit", "dependency", "other"]

_CLASSES: dict[PendingClass, frozenset[str]] = {
    "resources": frozenset(
        {"Resources", "ReqNodeNotAvail", "Nodes", "NodeDown", "Constraints", "Licenses",
         "BurstBufferResources", "PowerNotAvail", "PowerReserved"}
    ),
    "priority": frozenset({"Priority"}),
    "limit": frozenset(
        {"AccountingPolicy", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit",
         "JobArrayTaskLimit"}
    ),
    "dependency": frozenset({"Dependency", "DependencyNeverSatisfied"}),
}  # fmt: skip
_LIMITS = re.compile(r"(?:Assoc|QOS(?!NotAllowed)|Max).+")
"""Limits of an association or a QOS: Slurm has some 150 words for them, and new ones come."""

_NO_LETTER = re.compile(r"[^A-Za-z]")


def pending_class(reason: str) -> PendingClass:
    """The class of the reason for which a run waits, in Slurm's words (its page Job Reason Codes).

    * resources: it would start if more were free, or up: also where it asks for nodes that are
      taken, reserved or down (ReqNodeNotAvail), or all that fit it are ("Nodes required for job
      are DOWN, DRAINED or reserved ...");
    * priority: others come first;
    * limit: of its account, its QOS, its partition, or that its owner gave to an array: GPUs that
      are free don't help;
    * dependency: it waits for another job;
    * other: held, not due yet, impossible, not looked at yet, or in words that aren't Slurm's.
    """
    word = _NO_LETTER.split(reason, maxsplit=1)[0]
    for name, words in _CLASSES.items():
        if word in words:
            return name
    return "limit" if _LIMITS.fullmatch(word) else "other"
