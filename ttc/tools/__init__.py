"""Tools a model can call: one short file each; the file's name is the tool's (`ttc.agents.tool`)."""
