"""The compiled code: 256 runs at a time, one to a lane of the machine's vectors."""
