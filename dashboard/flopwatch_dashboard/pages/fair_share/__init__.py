"""Fair share: who has used more than their share, who less, and what waits?"""

from flopwatch_dashboard.pages import Page
from flopwatch_dashboard.pages.fair_share.callbacks import connect
from flopwatch_dashboard.pages.fair_share.data import check
from flopwatch_dashboard.pages.fair_share.layout import show
from flopwatch_dashboard.pages.fair_share.live import live

PAGE = Page(
    "Fair share", "/fair-share", show, connect, icon="scale", order=6, check=check, live=live
)
