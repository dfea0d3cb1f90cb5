"""SQL of this folder, a file a question: one run, GPUs now, the jobs list, a whole cluster."""
