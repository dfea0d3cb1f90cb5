"""Jobs: which jobs, and how efficient?"""

from flopwatch_dashboard.pages import Page
from flopwatch_dashboard.pages.jobs.callbacks import connect
from flopwatch_dashboard.pages.jobs.layout import show
from flopwatch_dashboard.pages.jobs.live import live

PAGE = Page("Jobs", "/jobs", show, connect, icon="list-tree", order=2, live=live)
