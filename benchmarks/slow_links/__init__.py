"""When compression pays: methods, graphs and compressors over slow links; ``python -m benchmarks.slow_links``, as root."""
