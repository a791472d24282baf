"""The distributed engine: runs are Temporal workflows, their steps activities, what agents answer updates."""
