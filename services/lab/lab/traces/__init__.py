"""Workload traces: loaders for published formats and a generator for machines that have none."""
