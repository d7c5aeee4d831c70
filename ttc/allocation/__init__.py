"""The plan of `auto`: the table that a calibration wrote, and the policy that follows it."""
