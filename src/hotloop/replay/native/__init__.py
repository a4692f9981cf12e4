"""Compiled code of the replay buffer. It works on addresses, and Python calls `entry_points`."""
