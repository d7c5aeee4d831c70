"""Code shared by engines: model folders, tokenizer and text, stops, token streaming, wrappers of an engine."""
