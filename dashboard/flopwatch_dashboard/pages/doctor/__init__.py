"""Doctor: what is wrong with this installation, and what mends it?"""

from flopwatch_dashboard.pages import Page
from flopwatch_dashboard.pages.doctor.callbacks import connect
from flopwatch_dashboard.pages.doctor.layout import show
from flopwatch_dashboard.pages.doctor.live import live

PAGE = Page(
    "Doctor", "/doctor", show, connect, icon="stethoscope", order=90, live=live, for_staff=True
)
