"""When does it pay? Methods, graphs and compressors over really slow links; ``python -m benchmarks.slow_links``, as root."""
