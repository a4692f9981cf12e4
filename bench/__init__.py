"""Benchmarks of hotloop and other libraries, their stored results, and tables made from them."""
