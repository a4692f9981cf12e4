"""Programs whose stages can be scaled, for measurements of `hotloop profile --what-if`."""
