"""The per-node daemon: reads counters, learns who holds which GPU, and sends both to the server."""
