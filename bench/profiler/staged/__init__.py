"""Scripts as users write them, with timers placed by hand; each leaves its times in timers.json."""
