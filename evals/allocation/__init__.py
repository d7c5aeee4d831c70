"""Spending one budget over a run: calibration, pools of samples, the planner."""
