"""The long lanes: clients nobody here wrote, abuse, chaos and soak, all against real processes."""
