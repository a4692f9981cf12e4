"""Questions and requests to the operating system: processes, cores, memory, files, signals."""
