"""The scheduler feed: runs, nodes and shares as JSON lines, for schedulers that can't be asked."""

from flopwatch_server.scheduler.feed.parser import FeedError, FeedSnapshot, Problem, parse

__all__ = ["FeedError", "FeedSnapshot", "Problem", "parse"]
