"""Access to the operating system: processes, cores, memory, files, signals."""
