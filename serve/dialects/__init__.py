"""Dialects: pure translations between what is on the wire and `ServeRequest` / events; one file each."""
