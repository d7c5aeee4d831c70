"""Methods of distillation: one file each."""
