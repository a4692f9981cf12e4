"""Reports about runs, sweeps and profiles: comparisons, plots and pages."""
