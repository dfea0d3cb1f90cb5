"""Phrases that more than one page says."""

from flopwatch_dashboard.format import count

NOT_TOLD = "No scheduler has told of any job yet."


def gpus_in_words(number: int, held: int) -> str:
    """ "All 8 GPUs", "Both GPUs", "The only GPU", "12 of 32 GPUs"."""
    if number < held:
        return f"{count(number)} of {count(held)} GPUs"
    return {1: "The only GPU", 2: "Both GPUs"}.get(held, f"All {count(held)} GPUs")
