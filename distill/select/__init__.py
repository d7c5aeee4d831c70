"""Rules by which some of the kept answers to one prompt are chosen: one file each."""
