"""Flopwatch in a training script: two lines report the job's Model FLOPs Utilization."""
