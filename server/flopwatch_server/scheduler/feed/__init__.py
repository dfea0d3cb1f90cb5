"""The scheduler feed: runs and nodes as JSON lines, for any scheduler that Flopwatch can't ask."""

from flopwatch_server.scheduler.feed.parser import FeedError, FeedSnapshot, Problem, parse

__all__ = ["FeedError", "FeedSnapshot", "Problem", "parse"]
