"""The safe adapter to reasoning-gym: which scorer a task gets (`methods`), ours (`ours`), and the worker (`worker`)."""
