"""Clusters, nodes and devices in the database."""
