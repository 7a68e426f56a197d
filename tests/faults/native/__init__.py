"""A proxy whose data plane is native: what it counts, charges and ends, compared with one whose data plane is not."""
