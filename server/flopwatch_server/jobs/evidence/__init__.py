"""What agents see of who holds a GPU, weighed against what the scheduler says."""
