"""Overview: how well is the cluster being used right now?"""

from flopwatch_dashboard.pages import Page
from flopwatch_dashboard.pages.overview.callbacks import connect
from flopwatch_dashboard.pages.overview.layout import show
from flopwatch_dashboard.pages.overview.live import live

PAGE = Page("Overview", "/", show, connect, icon="gauge", order=1, live=live)
