"""What engines share: model folders, tokenizer and text, stops, token streaming, wrappers of an engine."""
