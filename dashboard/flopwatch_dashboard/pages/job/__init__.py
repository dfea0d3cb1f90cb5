"""Job: is my job using its GPUs, and what should I know?"""

from flopwatch_dashboard.pages import Page
from flopwatch_dashboard.pages.job.callbacks import connect
from flopwatch_dashboard.pages.job.data import check
from flopwatch_dashboard.pages.job.layout import show
from flopwatch_dashboard.pages.job.live import live

PAGE = Page("Job", "/jobs/{cluster}/{job_id}", show, connect, check=check, live=live)
