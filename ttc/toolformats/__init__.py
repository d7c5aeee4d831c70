"""The formats in which model families write function calls, and in which functions are presented to them.

notation  how calls are written in one format, and read back from an answer
families  the formats of the families, and which of them a model has by its chat template
"""
